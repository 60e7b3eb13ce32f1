/* Forks when the program into which it is preloaded asks for its parent process. Safe Rust can ask
 * for the parent process, but can't fork. */
#include <unistd.h>

pid_t getppid(void) { return fork(); }
