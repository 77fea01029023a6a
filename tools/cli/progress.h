/* A progress bar on stderr, only if that is a terminal. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

typedef struct {
    int shown;          /* 1: stderr is a terminal, and --quiet was not given */
    double began;       /* tool_seconds() */
    double done_then;   /* fraction of the work done before it began */
    long finished_then; /* images finished before it began; -1: unknown yet */
    double last_drawn;  /* time of the last drawing; at most ten a second */
} progress;

void progress_start(progress *p, int quiet);

/* Shows a task without measurable progress: "loading mar_base.pth". */
void progress_note(progress *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Starts the clock of the remaining time and of the images per second. The first progress_update tells the work done
 * before. */
void progress_begin(progress *p);

/* Shows `done`, 0..1 of all work, and images finished of those wanted, with images per second if they are many. */
void progress_update(progress *p, double done, long finished, long wanted);

/* Removes the bar. Call it before printing any message. */
void progress_clear(progress *p);

#endif
