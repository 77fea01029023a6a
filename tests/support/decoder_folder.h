/* Folders of decoders that write images among text, small ones in the official layouts. */
#ifndef TESTS_DECODER_FOLDER_H
#define TESTS_DECODER_FOLDER_H

/* Writes text to folder/name. */
void write_in(const char *folder, const char *name, const char *text);
/* Copies a file to folder/name. */
void copy_in(const char *folder, const char *name, const char *from);
/* Writes folder/name, safetensors with one tensor [rows][width] of F32, BF16 or F16. Element i of the tensor is
 * decoder_value(i), exact in all three. */
void write_embedding(const char *folder, const char *name, const char *tensor, const char *dtype, int rows, int width);
float decoder_value(int i);

/* Returns a fresh folder of a family ("lumina-mgpt", "anole", "emu3"): configuration, tokenizer, and an embedding of
 * 400 or, of Emu3, 775 rows, but no other weights. */
char *decoder_folder(const char *family, const char *dtype, int width);

/* Writes an Emu3 of one layer to a folder: configuration, tokenizer and weights, with `codebook` image tokens. */
void write_emu3(const char *folder, int codebook);

/* Lumina's configuration, with the image tokens IMGIMGAZ (number 0) to IMGIMGDZ at 7, 5, 6 and 4 and a line end at 8.
 */
#define LUMINA_CONFIG                                                                                                  \
    "{\"architectures\":[\"ChameleonXLLMXForConditionalGeneration\"],\"max_position_embeddings\":4096,"                \
    "\"vocabulary_map\":{\"<s>\":0,\"IMGIMGDZ\":4,\"IMGIMGBZ\":5,\"IMGIMGCZ\":6,\"IMGIMGAZ\":7,"                       \
    "\"<reserved08799>\":8}}"

#endif
