/* A progress bar on stderr, only if that is a terminal. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

typedef struct {
    int shown;          /* stderr is a terminal and nobody asked for quiet */
    double began;       /* tool_seconds() */
    double done_then;   /* fraction of the work that was done when it began */
    long finished_then; /* images, the same; -1: none was shown yet */
    double last_drawn;  /* redrawn ten times a second at most */
} progress;

void progress_start(progress *p, int quiet);

/* What is being waited for, where the work cannot be measured: "loading mar_base.pth". */
void progress_note(progress *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Starts the clock that the time left, and the images per second, are told by. What the first progress_update says was
 * done before. */
void progress_begin(progress *p);

/* `done`: 0..1 of all the work; images finished of images wanted, with images per second if they are many. */
void progress_update(progress *p, double done, long finished, long wanted);

/* Removes the bar, so that what is printed next stands alone. Call it before any message. */
void progress_clear(progress *p);

#endif
