/* `mar fidelity --search`: finds the fastest combination of accelerators at each distance, for a model on this machine.
 *
 * The space is a product of axes (space.c): autoregressive steps, the head's chain, caches, arithmetic, speculation.
 * First every alternative is measured alone ("screening", with --screen images). Ratios of time multiply and distances
 * add up, roughly. Combinations are screened in the order of the fronts that this predicts, until the budget is spent.
 * The points on the measured front are measured again with all images. Only these final points are proposed.
 *
 * A point is compared with the reference by images of the same seeds. Its time is the median over a few turns, beside
 * which the reference makes the same images. Images and times are in a run store: a search that was killed takes them
 * from there, and comes to the same figures. search_report.c reports. */
#ifndef TOOLS_FIDELITY_SEARCH_H
#define TOOLS_FIDELITY_SEARCH_H

#include "tools/fidelity/job.h"

#include <stdint.h>

enum {
    SEARCH_AXES = 6,
    SEARCH_CHOICES = 8,       /* alternatives of an axis, including the plain one */
    SEARCH_POINTS_MAX = 2000, /* bound on the product of the axes */
    SEARCH_FINALS = 12,       /* maximum points measured with all images */
    SEARCH_LEVELS = 3,
    SEARCH_TEXT = 320 /* bytes of a point's options */
};

/* An axis: its alternatives as on a command line; the first, "", is plain. */
typedef struct {
    char choices[SEARCH_CHOICES][96];
    int count;
} search_axis;

/* Measurements of a point. */
typedef struct {
    int images;      /* images measured; 0: not measured */
    double seconds;  /* per image, median of the timed turns */
    double speed;    /* the reference's seconds over its own in the same turns, median */
    double distance; /* energy distance of whole images to the reference */
    double token_distance;
    double p;                     /* as fidelity_run.p */
    double recognised;            /* share of digits that the classifier recognises; -1: not judged */
    double speed_low, speed_high; /* spread of the speed over the turns, as in fidelity_spread */
    char guarantee[1024];         /* mar_session_guarantee */
} search_figures;

typedef struct {
    int choice[SEARCH_AXES];   /* alternative on each axis; all 0 is the reference, not a point */
    char options[SEARCH_TEXT]; /* "--num_iter 16 --dtype int8" */
    char refused[256];         /* why the session rejects it; "": accepted, or not tried */
    search_figures screened;   /* with search.screen images */
    search_figures final;      /* with all images */
    int rank;                  /* 0: on the predicted front, 1: on the front of the rest, ...; -1: not predicted */
    int front;                 /* 1: no other final point is as near and as fast */
} search_point;

typedef struct {
    fidelity *f; /* runs[0] is the reference, runs[1] the point being measured */
    char *json;  /* path of the page, ending in .json */
    char *store; /* path of the store: the page's without .html; NULL: --store */
    int is_new;  /* 1: the JSON file may lack a measurement */

    search_axis axes[SEARCH_AXES];
    int axis_count;
    search_point *points; /* [point_count] all but the reference, single-axis points first */
    int point_count;

    uint64_t reference_sum;       /* hash of the reference's tokens */
    char run[17];                 /* the reference's run in the store */
    double reference_seconds;     /* per image, in the turns of the point timed last */
    fidelity_floor floor, coarse; /* with all images; with those of a screening */
    int chosen[SEARCH_LEVELS];    /* point chosen for each level; -1: only the reference is near enough */
} search;

/* Runs the search: makes the missing images of the reference and the points, writes the page, prints. Returns the exit
 * status. */
int fidelity_search(fidelity *f);

/* --- the space (space.c) --- -------------------------------------------------------------------------------------- */

/* Sets the axes for the reference, whose session is open, and lists the points. Returns 0, or 1 after printing that
 * memory ran out. */
int search_list(search *s);
/* Ranks the points by what the screened single-axis points predict. */
void search_rank(search *s);
/* Returns the next point to screen; -1 if the budget is spent or no point is left. */
int search_next(const search *s);
/* Writes why point i was not measured to why, char [size], once search_next has returned -1; "" if it was. Returns
 * why. */
const char *search_why_untried(const search *s, int i, char *why, size_t size);
/* Lists the points to measure with all images, the fastest first, in list [SEARCH_FINALS]. Returns their number. */
int search_finals(const search *s, int *list);
/* Marks the front of the final points. Chooses for each level the fastest point within search_reach of the floor. */
void search_choose(search *s);
/* Returns how many times the floor's distance a level allows: 1, 4, 16. Energy distances are squares: a level allows
 * once, twice or four times as far as another seed. */
double search_reach(int level);

/* --- reports (search_report.c) ------------------------------------------------------------------------------------ */

/* Checks that the JSON file, if it exists, is this search's. Returns 0, or 1 after printing why it is not. */
int search_check(const search *s);
/* Writes it, whole or not at all. Returns 0, or 1 with the error printed. */
int search_write(const search *s);
/* Prints the same record. */
int search_print_json(const search *s);
/* Writes the page. Returns 0, or 1 with the error printed. */
int search_write_page(const search *s);
/* Prints a table of the final points, and a command line for each level. */
void search_print(const search *s);

#endif
