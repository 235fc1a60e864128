/* What every stand-in of a glibc library shares: one empty function per name, so that the names can be versioned. */
#define STANDIN(name) int name(void) { return 0; }
