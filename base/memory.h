/* How much memory this process may still take. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

/* Bytes: what the machine has left, swap included, or less if a control group allows less. What caches hold of files
 * counts as left. 0 if nothing says. `root` stands for "/": it has proc/meminfo, and what base/groups.h reads. */
double memory_available(const char *root);

#endif
