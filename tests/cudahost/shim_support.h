/* For the tests of the shim: random numbers, memory, launches, mistakes. */
#ifndef TESTS_CUDAHOST_SHIM_SUPPORT_H
#define TESTS_CUDAHOST_SHIM_SUPPORT_H

#include "kernels/cuda/ptx.h"
#include "tests/cudahost/fibres.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
}

static inline uint32_t word(uint32_t i)
{
    uint32_t out[4];
    kern_random_words(1, KERN_NOISE_INIT, 0, 0, 0, i / 4, out);
    return out[i % 4];
}
static inline float number(uint32_t i)
{
    return (float)word(i) / 2147483648.0f - 1;
}

#define assert_cuda(call) assert_string_equal(cudaGetErrorName(call), "cudaSuccess")

static inline void *device(size_t bytes)
{
    void *p;
    assert_cuda(cudaMalloc(&p, bytes));
    return p;
}
template <typename T> static T *device_copy(const T *host, size_t n)
{
    T *p = (T *)device(n * sizeof(T));
    assert_cuda(cudaMemcpy(p, host, n * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
template <typename T> static void host_copy(T *host, const T *p, size_t n)
{
    assert_cuda(cudaMemcpy(host, p, n * sizeof(T), cudaMemcpyDeviceToHost));
}

template <typename... P, typename... A>
static cudaError_t launch(void (*kernel)(P...), unsigned grid, unsigned block, size_t shared, A... a)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    return cudaLaunchKernelEx(&config, kernel, P(a)...);
}
template <typename... P, typename... A>
static cudaError_t launch_together(void (*kernel)(P...), unsigned grid, unsigned cluster, unsigned block, size_t shared,
                                   A... a)
{
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {cluster, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, kernel, P(a)...);
}

/* --- mistakes: each in its own process, whose exit status and output are checked ------------------------------------
 */

/* Forks a process in which cmocka does not handle faults. */
static struct sigaction of_faults;
static inline void remember_faults() /* before the tests */
{
    sigaction(SIGSEGV, NULL, &of_faults);
}
static inline pid_t fork_bare()
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) sigaction(SIGSEGV, &of_faults, NULL);
    return child;
}

/* Asserts that mistake(which) ends its process with an error, and prints `words`. */
static inline void assert_found(void (*mistake)(int), int which, const char *words)
{
    int ends[2];
    char said[16384];
    size_t n = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork_bare();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        mistake(which);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], said + n, sizeof(said) - 1 - n)) > 0;) n += (size_t)got;
    said[n] = 0;
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) fail_msg("mistake %d was not found (%s)", which, words);
    if (!strstr(said, words)) fail_msg("mistake %d: expected \"%s\" in:\n%s", which, words, said);
}
static inline void assert_fine(void (*not_a_mistake)(int), int which)
{
    const pid_t child = fork_bare();
    if (child == 0) {
        not_a_mistake(which);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("case %d is no mistake", which);
}

#endif
