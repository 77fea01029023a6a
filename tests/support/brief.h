/* Tells whether a sanitizer is enabled. Sanitizers make tests several times slower. They look for memory errors, and
 * one run of each kind of code suffices for that. Long lists of similar cases and large statistical samples run only
 * without sanitizers. */
#ifndef TESTS_BRIEF_H
#define TESTS_BRIEF_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { test_brief = 1 };
#else
enum { test_brief = 0 };
#endif

#endif
