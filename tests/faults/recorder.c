/* Records every change of files below a folder, for tests of power failures. Loaded with LD_PRELOAD.

   RECORDER_ROOT is the folder, RECORDER_LOG the file to which records are appended. A record is a header and two strings.
   Changes are recorded after they were made, one at a time. A sync is recorded when it begins and when it ends, because it covers
   only the changes that were made before it began. tests/faults/power.py reads the records. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct header {
    uint64_t operation, inode;
    int64_t offset;
    uint64_t first, second;
};

static char root[PATH_MAX];
static int log_file = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static void begin(void) { pthread_mutex_lock(&lock); }

static void end(void) {
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
}

static void in_child(void) { pthread_mutex_init(&lock, NULL); }

__attribute__((constructor)) static void start(void) {
    const char *folder = getenv("RECORDER_ROOT"), *file = getenv("RECORDER_LOG");
    if (!folder || !file) return;
    snprintf(root, sizeof root, "%s/", folder);
    log_file = REAL(open)(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    pthread_atfork(begin, end, in_child);
}

static void append(char operation, uint64_t inode, int64_t offset, const void *a, size_t a_size, const void *b, size_t b_size) {
    struct header header = {(uint64_t)operation, inode, offset, a_size, b_size};
    struct iovec parts[] = {{&header, sizeof header}, {(void *)a, a_size}, {(void *)b, b_size}};
    ssize_t size = (ssize_t)(sizeof header + a_size + b_size);
    int error = errno;
    if (REAL(writev)(log_file, parts, 3) != size) abort();
    errno = error;
}

static void append_paths(char operation, uint64_t inode, const char *a, const char *b) {
    append(operation, inode, 0, a, strlen(a), b, strlen(b));
}

/* Whether the file is below the folder. The path is stored in `absolute`. */
static int covers(int folder, const char *path, char *absolute) {
    if (log_file < 0) return 0;
    char link[64], base[PATH_MAX] = "";
    int error = errno;
    if (path[0] != '/') {
        if (folder == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) base[0] = 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t size = readlink(link, base, sizeof base - 1);
            base[size < 0 ? 0 : size] = 0;
        }
    }
    snprintf(absolute, 2 * PATH_MAX, "%s%s%s", base, base[0] ? "/" : "", path);
    errno = error;
    return strncmp(absolute, root, strlen(root)) == 0;
}

/* Whether a descriptor is of a file or folder below the recorded folder, or of that folder itself. A file without a name is gone
   after a power failure. */
static int covers_descriptor(int descriptor, struct stat *about) {
    char link[64], path[PATH_MAX];
    int error = errno, covered = 0;
    if (log_file >= 0 && fstat(descriptor, about) == 0 && about->st_nlink > 0 && (S_ISREG(about->st_mode) || S_ISDIR(about->st_mode))) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
        ssize_t size = readlink(link, path, sizeof path - 2);
        if (size > 0) {
            path[size] = '/', path[size + 1] = 0;
            covered = strncmp(path, root, strlen(root)) == 0;
        }
    }
    errno = error;
    return covered;
}

static uint64_t inode_of(const char *path) {
    struct stat about;
    return lstat(path, &about) == 0 ? about.st_ino : 0;
}

static int opened(int folder, const char *path, int flags, mode_t mode) {
    char absolute[2 * PATH_MAX];
    if (!(flags & (O_CREAT | O_TRUNC)) || !covers(folder, path, absolute)) return REAL(openat)(folder, path, flags, mode);
    begin();
    uint64_t before = inode_of(absolute);
    int result = REAL(openat)(folder, path, flags, mode);
    if (result >= 0 && !before) append_paths('C', inode_of(absolute), absolute, "");
    else if (result >= 0 && (flags & O_TRUNC)) append('T', before, 0, "", 0, "", 0);
    end();
    return result;
}

#define OPEN(name)                                                     \
    int name(const char *path, int flags, ...) {                       \
        va_list rest;                                                  \
        va_start(rest, flags);                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                  \
        return opened(AT_FDCWD, path, flags, mode);                    \
    }
#define OPENAT(name)                                                   \
    int name(int folder, const char *path, int flags, ...) {           \
        va_list rest;                                                  \
        va_start(rest, flags);                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                  \
        return opened(folder, path, flags, mode);                      \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

FILE *fopen(const char *path, const char *mode) {
    char absolute[2 * PATH_MAX];
    if (strpbrk(mode, "wa+") && covers(AT_FDCWD, path, absolute)) abort(); /* its writes could not be recorded */
    return REAL(fopen)(path, mode);
}
FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }

static void append_written(struct stat *about, int64_t offset, const struct iovec *parts, int count, ssize_t size) {
    char *data = malloc((size_t)size), *end_of = data;
    ssize_t left = size;
    for (int each = 0; each < count && left > 0; each++) {
        size_t part = parts[each].iov_len < (size_t)left ? parts[each].iov_len : (size_t)left;
        memcpy(end_of, parts[each].iov_base, part);
        end_of += part, left -= (ssize_t)part;
    }
    append('W', about->st_ino, offset, data, (size_t)size, "", 0);
    free(data);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    struct stat about;
    if (descriptor == log_file || !covers_descriptor(descriptor, &about)) return REAL(writev)(descriptor, parts, count);
    begin();
    ssize_t size = REAL(writev)(descriptor, parts, count);
    if (size > 0) append_written(&about, lseek(descriptor, 0, SEEK_CUR) - size, parts, count, size);
    end();
    return size;
}

ssize_t write(int descriptor, const void *data, size_t wanted) {
    struct stat about;
    if (!covers_descriptor(descriptor, &about)) return REAL(write)(descriptor, data, wanted);
    begin();
    ssize_t size = REAL(write)(descriptor, data, wanted);
    if (size > 0) append('W', about.st_ino, lseek(descriptor, 0, SEEK_CUR) - size, data, (size_t)size, "", 0);
    end();
    return size;
}

#define PWRITE(name)                                                                   \
    ssize_t name(int descriptor, const void *data, size_t wanted, off_t offset) {      \
        struct stat about;                                                             \
        if (!covers_descriptor(descriptor, &about)) return REAL(name)(descriptor, data, wanted, offset); \
        begin();                                                                       \
        ssize_t size = REAL(name)(descriptor, data, wanted, offset);                   \
        if (size > 0) append('W', about.st_ino, offset, data, (size_t)size, "", 0);    \
        end();                                                                         \
        return size;                                                                   \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define TRUNCATE(name)                                                                 \
    int name(int descriptor, off_t size) {                                             \
        struct stat about;                                                             \
        if (!covers_descriptor(descriptor, &about)) return REAL(name)(descriptor, size); \
        begin();                                                                       \
        int result = REAL(name)(descriptor, size);                                     \
        if (result == 0) append('T', about.st_ino, size, "", 0, "", 0);                \
        end();                                                                         \
        return result;                                                                 \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define SYNC(name)                                                                     \
    int name(int descriptor) {                                                         \
        struct stat about;                                                             \
        if (!covers_descriptor(descriptor, &about)) return REAL(name)(descriptor);     \
        static __thread int64_t number;                                                \
        int64_t sync = ++number * 1000000 + (int64_t)gettid();                         \
        begin();                                                                       \
        append('S', about.st_ino, sync, "", 0, "", 0);                                 \
        end();                                                                         \
        int result = REAL(name)(descriptor);                                           \
        begin();                                                                       \
        if (result == 0) append('E', about.st_ino, sync, "", 0, "", 0);                \
        end();                                                                         \
        return result;                                                                 \
    }
SYNC(fsync)
SYNC(fdatasync)

static int renamed(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    char old[2 * PATH_MAX], new[2 * PATH_MAX];
    int covered = covers(from_folder, from, old) & covers(to_folder, to, new);
    if (!covered) return REAL(renameat2)(from_folder, from, to_folder, to, flags);
    begin();
    uint64_t inode = inode_of(old);
    int result = REAL(renameat2)(from_folder, from, to_folder, to, flags);
    if (result == 0) append_paths('R', inode, old, new);
    end();
    return result;
}
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    return renamed(from_folder, from, to_folder, to, flags);
}
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    return renamed(from_folder, from, to_folder, to, 0);
}
int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    char old[2 * PATH_MAX], new[2 * PATH_MAX];
    int covered = covers(from_folder, from, old) & covers(to_folder, to, new);
    if (!covered) return REAL(linkat)(from_folder, from, to_folder, to, flags);
    begin();
    int result = REAL(linkat)(from_folder, from, to_folder, to, flags);
    if (result == 0) append_paths('L', inode_of(new), old, new);
    end();
    return result;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int folder, const char *path, int flags) {
    char absolute[2 * PATH_MAX];
    if (!covers(folder, path, absolute)) return REAL(unlinkat)(folder, path, flags);
    begin();
    uint64_t inode = inode_of(absolute);
    int result = REAL(unlinkat)(folder, path, flags);
    if (result == 0) append_paths('U', inode, absolute, "");
    end();
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    int result = unlink(path);
    return result != 0 && (errno == EISDIR || errno == EPERM) ? rmdir(path) : result;
}

int mkdirat(int folder, const char *path, mode_t mode) {
    char absolute[2 * PATH_MAX];
    if (!covers(folder, path, absolute)) return REAL(mkdirat)(folder, path, mode);
    begin();
    int result = REAL(mkdirat)(folder, path, mode);
    if (result == 0) append_paths('D', inode_of(absolute), absolute, "");
    end();
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
