/* What a fork takes along, and its child is to be rid of. */
#ifndef RAILHOP_FORK_H
#define RAILHOP_FORK_H

/* Whether this is a child of the process whose threads Go's are. */
int fork_is_child(void);

/* Has children close what they inherit of the files in a folder. */
void fork_watch_folder(const char *folder);

#endif /* RAILHOP_FORK_H */
