/* A progress bar on stderr, only if that is a terminal. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

typedef struct {
    int shown;         /* stderr is a terminal and nobody asked for quiet */
    double began;      /* tool_seconds() */
    double last_drawn; /* redrawn ten times a second at most */
} progress;

void progress_start(progress *p, int quiet);

/* What is being waited for, before the work that can be measured: "loading mar_base.pth". */
void progress_note(progress *p, const char *what);

/* Starts the clock that the time left is told by. */
void progress_begin(progress *p);

/* `done`: 0..1 of all the work; images finished of images wanted. */
void progress_update(progress *p, double done, long finished, long wanted);

/* Removes the bar, so that what is printed next stands alone. Call it before any message. */
void progress_clear(progress *p);

#endif
