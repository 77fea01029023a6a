/* `mar fidelity --search`: which combination of ways is fastest at which distance, for a model on this machine.
 *
 * The space is a product of axes (fidelity_space.c): autoregressive steps, the head's chain, caches, arithmetic,
 * speculation. First every alternative is measured alone ("screening", with --screen images). Ratios of time multiply
 * and distances add up, roughly: combinations are screened in the order of the fronts that this predicts, until the
 * budget is spent. What is then on the measured front is measured once more, with all images. Only these final points
 * are proposed.
 *
 * A point is compared with the reference by images of the same seeds; its time is the median over a few turns that
 * the reference makes right beside it. Images and times are in a run store: a search that was killed takes from there
 * what was made, and comes to the same figures. journal.c and search_report.c tell. */
#ifndef TOOLS_FIDELITY_SEARCH_H
#define TOOLS_FIDELITY_SEARCH_H

#include "tools/fidelity/job.h"
#include "tools/cli/progress.h"

#include <stdint.h>

typedef struct cJSON cJSON;

enum {
    SEARCH_AXES = 6,
    SEARCH_CHOICES = 8,       /* alternatives of an axis, the plain one among them */
    SEARCH_POINTS_MAX = 2000, /* of the whole space: the product of the axes is less */
    SEARCH_FINALS = 12,       /* points measured with all images, at most */
    SEARCH_LEVELS = 3,
    SEARCH_TEXT = 320 /* bytes of a point's options */
};

/* An axis: its alternatives as on a command line, the first one "", plain. */
typedef struct {
    char choices[SEARCH_CHOICES][96];
    int count;
} search_axis;

/* What was measured of a point with so many images. */
typedef struct {
    int images;      /* 0: not measured */
    double seconds;  /* per image, median of the timed turns */
    double speed;    /* the reference's seconds over its own, in the same turns: median */
    double distance; /* energy distance of whole images to the reference */
    double token_distance;
    double p;                     /* as fidelity_run.p */
    double recognised;            /* share of digits that the classifier recognises; -1: it is not asked */
    double speed_low, speed_high; /* spread of the speed over the turns, as in fidelity_spread; -1: unknown */
    char guarantee[256];          /* mar_session_guarantee */
} search_figures;

typedef struct {
    int choice[SEARCH_AXES];   /* of each axis; all 0 is the reference, and no point */
    char options[SEARCH_TEXT]; /* "--num_iter 16 --dtype int8" */
    char refused[256];         /* why the session does not take it; "": it does, or was not asked */
    search_figures screened;   /* with search.screen images */
    search_figures final;      /* with all of them */
    int rank;                  /* 0: on the front that is predicted, 1: on that of the others, ...; -1: not predicted */
    int front;                 /* 1: of the points that were measured with all images none is as near and as fast */
} search_point;

/* What another seed makes of the reference, with so many images. */
typedef struct {
    double image, token;
} search_floor;

typedef struct {
    fidelity *f;        /* runs[0] is the reference, runs[1] the point that is measured */
    run_options base;   /* the reference's as given, without draft */
    const char *draft;  /* as given; NULL: none */
    int screen, budget; /* images of a screening; points screened at most */
    const char *page;   /* as given */
    char *json;         /* the page's name with .json */
    char *store;        /* the store: the page's name without .html; NULL: --store */

    search_axis axes[SEARCH_AXES];
    int axis_count;
    search_point *points; /* [point_count] all but the reference, those of one way first */
    int point_count;

    char reference[1536];       /* what the reference is, in words */
    uint64_t reference_sum;     /* a hash of its tokens */
    char run[17];               /* its run in the store */
    double reference_seconds;   /* per image, in the turns beside the last point that was timed */
    search_floor floor, coarse; /* with all images, and with those of a screening */
    int chosen[SEARCH_LEVELS];  /* the point that a level stands for; -1: none is near enough but the reference */
} search;

/* Runs it: makes the reference's images and the points', as far as they are not there, writes the page, prints. Returns
 * the exit status. */
int fidelity_search(fidelity *f, progress *bar);

/* --- the space (fidelity_space.c) --- */

/* Sets the axes for the reference, whose session is open, and lists the points. Returns 0, or 1 after printing that
 * memory ran out. */
int search_list(search *s);
/* Ranks the points by what those of one way predict, as far as they are screened. */
void search_rank(search *s);
/* The point to be screened next; -1: the budget is spent, or none is left. */
int search_next(const search *s);
/* Says why point i was not measured, once search_next has returned -1: in why, char [size], which is returned; "" if it
 * was. */
const char *search_why_untried(const search *s, int i, char *why, size_t size);
/* Lists the points to be measured with all images, the fastest first, to list [SEARCH_FINALS]; how many there are. */
int search_finals(const search *s, int *list);
/* Marks the front of what was measured with all images, and chooses a point for each level: the fastest that is within
 * search_reach of the floor. */
void search_choose(search *s);
/* How many times the floor's distance a level may have: 1, 4, 16. Energy distances are squares, so that is once,
 * twice and four times as far as another seed. */
double search_reach(int level);

/* --- the JSON file (journal.c) --- */

/* Whether the JSON file, if there is one, is this search's. Returns 0, or 1 after printing why it is not. */
int search_check(const search *s);
/* Writes it, whole or not at all. Returns 0, or 1 after printing an error. */
int search_write(const search *s);
/* Returns its record, begun by tool_json; the caller deletes it. */
cJSON *search_record(const search *s);
/* The same to standard output. */
int search_print_json(const search *s);

/* --- what it says (fidelity_search_report.c) --- */

/* Writes the page of the search's record, which it deletes. Returns 0, or 1 after printing an error. */
int search_write_page(const search *s, cJSON *record);
void search_print(const search *s);
/* The command line that makes images as point i does; the reference's for -1. Returns text. */
const char *search_command(const search *s, int i, char *text, size_t size);

#endif
