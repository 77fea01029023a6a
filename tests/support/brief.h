/* Tells whether a sanitizer is enabled or an emulator runs the tests. Sanitizers make tests several times slower,
 * emulators a hundred times. They look for errors of memory and of instructions, and one run of each kind of code
 * suffices for that. Long lists of similar cases and large statistical samples run only without them. */
#ifndef TESTS_BRIEF_H
#define TESTS_BRIEF_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(TESTS_EMULATED)
enum { test_brief = 1 };
#else
enum { test_brief = 0 };
#endif

#endif
