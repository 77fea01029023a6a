/* "Did you mean": edit distances of words. */
#ifndef TOOLS_SUGGEST_H
#define TOOLS_SUGGEST_H

/* Returns the insertions, deletions, replacements and swaps of neighbours between a and b, ignoring case; INT_MAX if
 * either is longer than 63 bytes. */
int suggest_distance(const char *a, const char *b);

/* Returns the nearest of `names` (ends with NULL) if it is near enough; else NULL. */
const char *suggest_nearest(const char *word, const char *const *names);

/* Returns this program's option for another program's; NULL if the name is unknown. *advice is a clause for the
 * message, or NULL if both options mean the same. */
const char *suggest_option(const char *guess, const char **advice);

#endif
