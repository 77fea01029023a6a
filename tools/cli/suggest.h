/* "Did you mean": how far apart two words are. */
#ifndef TOOLS_SUGGEST_H
#define TOOLS_SUGGEST_H

/* Insertions, deletions and replacements between a and b, upper and lower case being the same; INT_MAX if either is
 * longer than 63 bytes. */
int suggest_distance(const char *a, const char *b);

/* The nearest of `names` (ends with NULL) if it is near enough to be meant, else NULL. */
const char *suggest_nearest(const char *word, const char *const *names);

/* Returns this program's option for an option's name in other programs, or NULL if the name is unknown. *advice is then
 * a clause for the message, or NULL if the two options mean the same. */
const char *suggest_option(const char *guess, const char **advice);

#endif
