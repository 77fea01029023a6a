/* "Did you mean": how far apart two words are. */
#ifndef TOOLS_SUGGEST_H
#define TOOLS_SUGGEST_H

/* Insertions, deletions and replacements between a and b, upper and lower case being the same; INT_MAX if either is
 * longer than 63 bytes. */
int suggest_distance(const char *a, const char *b);

/* The nearest of `names` (ends with NULL) if it is near enough to be meant, else NULL. */
const char *suggest_nearest(const char *word, const char *const *names);

/* What an option that other programs have is here, NULL if nothing is known of it: the option's name, or, with *is_text
 * 1, a clause for the message. */
const char *suggest_option(const char *guess, int *is_text);

#endif
