/* Forks where the program it is preloaded into asks for its parent process. Safe Rust can ask for
 * that and can't fork. */
#include <unistd.h>

pid_t getppid(void) { return fork(); }
