/* Whether a sanitizer is at work, with which everything takes several times as long. It looks for errors of memory, and
 * once is enough for what it sees: long lists of like cases, and samples as large as statistics need, are for the
 * builds without. */
#ifndef TESTS_BRIEF_H
#define TESTS_BRIEF_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { test_brief = 1 };
#else
enum { test_brief = 0 };
#endif

#endif
