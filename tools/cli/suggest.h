/* "Did you mean": edit distances of words. */
#ifndef TOOLS_SUGGEST_H
#define TOOLS_SUGGEST_H

/* Returns the insertions, deletions, replacements and swaps of neighbours between a and b, ignoring case; INT_MAX if
 * either is longer than 63 bytes. */
int suggest_distance(const char *a, const char *b);

/* Returns the nearest of `names` (ends with NULL) if it is near enough; else NULL. */
const char *suggest_nearest(const char *word, const char *const *names);

/* Another program's name for an option of this one. */
typedef struct {
    const char *guess;
    const char *options[2]; /* ours: the first that the command has is meant; NULL: no second */
    const char *advice;     /* a clause for the message; NULL: both options mean the same */
} other_name;

/* Returns what is known of another program's option, in either case; NULL if the name is unknown. */
const other_name *suggest_option(const char *guess);

#endif
