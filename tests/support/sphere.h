/* SphereAR's small golden model with the image encoder, whose numbers are drawn (tests/support/tensor_files.h). */
#ifndef TESTS_SPHERE_H
#define TESTS_SPHERE_H

/* Writes FOLDER/NAME: tests/golden/data/sphere_model.safetensors with an encoder beside its decoder. A failure fails
 * the test. */
void sphere_write_with_encoder(const char *folder, const char *name);

#endif
