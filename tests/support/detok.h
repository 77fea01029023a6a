/* A small MAR on l-DeTok, in files as its release has them. Their weights are those of tests/golden/make_detok.py. */
#ifndef TESTS_DETOK_H
#define TESTS_DETOK_H

/* Returns the path of a file: "mar_tiny.pth", "detok-tiny-decoder_tuned.pth", or "stats.pkl". All are in one folder,
 * which the first call makes, and which is removed when the program ends. A failure fails the test. */
const char *detok_path(const char *name);

#endif
