// What test_guard.c calls: C++ that throws, like oneDNN, through C.
#include <exception>
#include <new>
#include <string>

static int destroyed;

namespace
{
struct counted {
    std::string text = std::string(100, 'x'); // memory of its own
    ~counted()
    {
        destroyed++;
    }
};

void nested(int depth, int what)
{
    counted here;
    if (depth > 0)
        nested(depth - 1, what);
    else if (what == 0)
        throw std::bad_alloc();
    else if (what == 1)
        throw 5;
    else if (what == 2)
        throw counted();
}

void caught_and_thrown_again(int depth, int what)
{
    try {
        nested(depth, what);
    } catch (...) {
        throw;
    }
}
} // namespace

extern "C" {
/* Throws an exception of a kind (0: std::bad_alloc, 1: int, 2: a class; 3: none) from `depth` frames down. */
int throws_from(int depth, int kind)
{
    caught_and_thrown_again(depth, kind);
    return 7;
}

/* How many objects have been destroyed since the last call. */
int throws_destroyed(void)
{
    const int n = destroyed;
    destroyed = 0;
    return n;
}

int throws_under_way(void)
{
    return std::uncaught_exceptions();
}
}
