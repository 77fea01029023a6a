/* A folder of prompts, a file NAME.txt each, as DPG-Bench has them. */
#ifndef TOOLS_PROMPT_FOLDER_H
#define TOOLS_PROMPT_FOLDER_H

typedef struct {
    char **names; /* [count] owned, in natural order: 9.txt is before 10.txt, as mar eval orders images */
    int count;    /* 1 or more */
} prompt_folder;

int prompt_folder_is(const char *path); /* whether it is a folder */
/* Lists the files. Returns 0; or 1 with the error printed and *out {0}: for a folder without files, and for an entry
 * that is no NAME.txt. */
int prompt_folder_list(const char *path, prompt_folder *out);
void prompt_folder_free(prompt_folder *f);

#endif
