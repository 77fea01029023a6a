/* The protocol line of a result, and the texts about judging that it is made of. A run's settings have these texts. */
#ifndef TOOLS_EVAL_PROTOCOL_H
#define TOOLS_EVAL_PROTOCOL_H

#include "tools/eval/options.h"
#include "tools/generate/record.h"

/* Returns the value of a text; "" if there is none. */
const char *protocol_text(const record_texts *texts, const char *key);

/* Adds what the judging depends on: networks, models of the scores, the reference, each with its file's identity.
 * Returns 0, or 1 with the error printed. */
int protocol_add_judging(record_texts *texts, const eval_options *o, const prompt_scorer *scorer);
/* Adds the identities of the models of the scores, and of their prompts. */
void protocol_add_scores(record_texts *texts, const prompt_scorer *scorer);

/* Writes the value of `key`, and in brackets that of `key`_id. Returns text. */
const char *protocol_file(const record_texts *texts, const char *key, char *text, size_t size);

/* Write the line, char [5 * EVAL_TEXT]: of the settings of a run; of images made elsewhere, in d. `network` NULL: none.
 * `accelerators`: as in eval_result. */
void protocol_of_run(const record_texts *settings, const mar_features_config *network, const char *accelerators,
                     char *line);
void protocol_of_images(const record_texts *judging, const mar_features_config *network, const judged *d, char *line);

#endif
