/* Tells how much a build's tests run.
 *
 * test_brief: a sanitizer is enabled, or an emulator runs the tests. Sanitizers make tests several times slower,
 * emulators a hundred times. They look for errors of memory and of instructions, and one run of each kind of code
 * suffices for that. Long lists of similar cases and large statistical samples run only without them.
 *
 * test_all: the nightly lane (MAR_TESTS is ALL) runs all cases. The change lane runs each kind of case and of mutant,
 * and its samples are large enough for the mutants. */
#ifndef TESTS_BRIEF_H
#define TESTS_BRIEF_H

#ifdef TESTS_BRIEF
enum { test_brief = 1 };
#else
enum { test_brief = 0 };
#endif

#ifdef TESTS_ALL
enum { test_all = 1 };
#else
enum { test_all = 0 };
#endif

#endif
