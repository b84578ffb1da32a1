/* A stand-in for libnvidia-ml.so.1 that the real binding loads: the driver's part is a text file, `state`, beside this
 * library, so that several processes see the same GPUs. A line is "GPU KEY VALUE"; GPU is an index or "-" for the
 * system; the last line with a key wins. Names and numbers of functions, structures and errors are those of nvml.h.
 *
 *   gcc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fake_nvml.c        -DOLD: a driver before 535
 *
 * What the driver does and this does as well: setters are for root; a GPU that no client holds and that has persistence
 * mode off forgets what it was told; ECC and MIG wait for a reset; SetMigMode succeeds although the mode is not active.
 * A test can make any function hang, crash, write to stdout or fail: "- hang nvmlInitWithFlags", "2 fail:NAME 17".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum {
	SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15, RESET_REQUIRED = 16, IN_USE = 19, ARGUMENT_VERSION_MISMATCH = 25,
};
enum { GPUS = 64, LINE = 512, SYSTEM = -1, LINKS_OF_THE_DRIVER = 18 };
enum { GRAPHICS = 0, SM = 1, MEMORY = 2 };
#define LIMIT_IDS 0xffffff00u

struct device { int index; };
typedef struct device *nvmlDevice_t;
typedef int nvmlReturn_t;

static struct device devices[GPUS];
static int users;		/* how often this process has called nvmlInit */
static int client = -1;		/* its share of the driver */

/* --- the state ------------------------------------------------------------------------------------------------- */

static const char *beside(const char *name)
{
	static char path[4096];
	Dl_info info;
	char *slash;

	if (!dladdr((void *)beside, &info) || !info.dli_fname)
		abort();
	snprintf(path, sizeof path - 64, "%s", info.dli_fname);
	slash = strrchr(path, '/');
	strcpy(slash ? slash + 1 : path, name);
	return path;
}

/* The value of a key into `value`; 0 if there is none. */
static int find(int gpu, const char *key, char *value)
{
	char line[LINE], who[16], word[128], owner[16];
	int found = 0, start;
	FILE *file = fopen(beside("state"), "r");

	if (!file)
		return 0;
	flock(fileno(file), LOCK_SH);
	snprintf(owner, sizeof owner, gpu == SYSTEM ? "-" : "%d", gpu);
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "%15s %127s %n", who, word, &start) != 2 || strcmp(who, owner) || strcmp(word, key))
			continue;
		line[strcspn(line, "\n")] = 0;
		strcpy(value, line + start);
		found = 1;
	}
	fclose(file);
	return found;
}

static unsigned long long number(int gpu, const char *key, unsigned long long otherwise)
{
	char value[LINE];

	return find(gpu, key, value) ? strtoull(value, NULL, 0) : otherwise;
}

static void put(int gpu, const char *key, const char *format, ...)
{
	FILE *file = fopen(beside("state"), "a");
	va_list words;

	if (!file)
		abort();
	flock(fileno(file), LOCK_EX);
	if (gpu == SYSTEM)
		fprintf(file, "- %s ", key);
	else
		fprintf(file, "%d %s ", gpu, key);
	va_start(words, format);
	vfprintf(file, format, words);
	va_end(words);
	fputc('\n', file);
	fclose(file);
}

static unsigned count(void) { return (unsigned)number(SYSTEM, "count", 0); }

/* A list of numbers, as it stands in the state. */
static unsigned list(int gpu, const char *key, unsigned *found, unsigned room)
{
	char value[LINE], *at = value, *end;
	unsigned n = 0;

	if (!find(gpu, key, value))
		return 0;
	for (unsigned one; n < room && (one = (unsigned)strtoul(at, &end, 10), end != at); at = end)
		found[n++] = one;
	return n;
}

/* --- what every call goes through ------------------------------------------------------------------------------ */

static void misbehave(const char *function)
{
	char value[LINE];

	if (find(SYSTEM, "noise", value) && !strcmp(value, function)) {
		printf("{\"ok\": \"noise\"}\n");
		fflush(stdout);
	}
	if (find(SYSTEM, "crash", value) && !strcmp(value, function)) {
		signal(SIGSEGV, SIG_DFL);
		raise(SIGSEGV);
	}
	if (find(SYSTEM, "hang", value) && !strcmp(value, function)) {
		sigset_t all;
		sigfillset(&all);
		sigprocmask(SIG_BLOCK, &all, NULL);
		for (;;)
			pause();
	}
}

static nvmlReturn_t failure(int gpu, const char *function)
{
	char key[160];

	snprintf(key, sizeof key, "fail:%s", function);
	return (nvmlReturn_t)number(gpu, key, SUCCESS);
}

static int known(nvmlDevice_t device)
{
	uintptr_t at = (uintptr_t)device, first = (uintptr_t)devices;

	return at >= first && at < first + count() * sizeof *devices && (at - first) % sizeof *devices == 0;
}

#define ENTER() do { misbehave(__func__); if (!users) return UNINITIALIZED; \
	nvmlReturn_t f_ = failure(SYSTEM, __func__); if (f_) return f_; } while (0)
#define ENTER_GPU(device) do { ENTER(); if (!known(device)) return INVALID_ARGUMENT; \
	if (number((device)->index, "lost", 0)) return GPU_IS_LOST; \
	nvmlReturn_t g_ = failure((device)->index, __func__); if (g_) return g_; } while (0)
#define NEED(pointer) do { if (!(pointer)) return INVALID_ARGUMENT; } while (0)
#define NEED_ROOT() do { if (geteuid() || number(SYSTEM, "deny", 0)) return NO_PERMISSION; } while (0)

/* Text into a buffer; "hex:..." in the state stands for bytes. */
static nvmlReturn_t text(int gpu, const char *key, char *buffer, unsigned length)
{
	char value[LINE] = "";
	unsigned n = 0, byte;

	NEED(buffer);
	if (!find(gpu, key, value))
		return NOT_SUPPORTED;
	if (!strncmp(value, "hex:", 4)) {
		for (char *at = value + 4; sscanf(at, "%2x", &byte) == 1; at += 2)
			value[n++] = (char)byte;
		value[n] = 0;
	}
	if (strlen(value) + 1 > length)
		return INSUFFICIENT_SIZE;
	strcpy(buffer, value);
	return SUCCESS;
}

static nvmlReturn_t one(int gpu, const char *key, unsigned *value)
{
	char found[LINE];

	NEED(value);
	if (!find(gpu, key, found))
		return NOT_SUPPORTED;
	*value = (unsigned)strtoull(found, NULL, 0);
	return SUCCESS;
}

/* --- start and end --------------------------------------------------------------------------------------------- */

static void forget(int gpu)
{
	char value[LINE];

	put(gpu, "gpu_lock", "0 0");
	put(gpu, "memory_lock", "0 0");
	put(gpu, "compute", "0");
	if (find(gpu, "power_default", value))
		put(gpu, "power_limit", "%s", value);
}

/* Holds the driver with a shared lock. Who gets it alone is the first client since the last one left. */
static void join(void)
{
	client = open(beside("clients"), O_RDONLY | O_CLOEXEC);
	if (client < 0)
		abort();
	if (!flock(client, LOCK_EX | LOCK_NB))
		for (unsigned gpu = 0; gpu < count(); gpu++)
			if (!number((int)gpu, "persistence", 0))
				forget((int)gpu);
	flock(client, LOCK_SH);
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	nvmlReturn_t refused;

	misbehave(__func__);
	if (flags & ~3u)
		return INVALID_ARGUMENT;
	if ((refused = failure(SYSTEM, __func__)))
		return refused;
	if (users++ == 0) {
		for (int i = 0; i < GPUS; i++)
			devices[i].index = i;
		join();
	}
	return SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void)
{
	ENTER();
	if (--users == 0)
		close(client);
	return SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	return result == SUCCESS ? "Success" : "Some Error";
}

/* --- finding GPUs ---------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	ENTER();
	return text(SYSTEM, "driver", version, length);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *n)
{
	ENTER();
	NEED(n);
	*n = count();
	return SUCCESS;
}

static nvmlReturn_t opened(unsigned index, nvmlDevice_t *device)
{
	if (number((int)index, "lost", 0))
		return GPU_IS_LOST;
	*device = &devices[index];
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	ENTER();
	NEED(device);
	return index < count() ? opened(index, device) : INVALID_ARGUMENT;
}

static int bus_id(const char *string, unsigned place[4])
{
	int end = 0;

	return sscanf(string, "%x:%x:%x.%x%n", place, place + 1, place + 2, place + 3, &end) == 4 && !string[end];
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	unsigned wanted[4], place[4];
	char value[LINE];

	ENTER();
	NEED(id);
	NEED(device);
	if (!bus_id(id, wanted))
		return INVALID_ARGUMENT;
	for (unsigned i = 0; i < count(); i++)
		if (find((int)i, "bus", value) && bus_id(value, place) && !memcmp(wanted, place, sizeof place))
			return opened(i, device);
	return NOT_FOUND;
}

struct pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char bus_id[32];
};

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci *pci)
{
	unsigned place[4];
	char value[LINE];

	ENTER_GPU(device);
	NEED(pci);
	if (!find(device->index, "bus", value) || !bus_id(value, place))
		return NOT_SUPPORTED;
	memset(pci, 0, sizeof *pci);
	pci->domain = place[0];
	pci->bus = place[1];
	pci->device = place[2];
	pci->id = (unsigned)number(device->index, "device", 0);
	snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", place[0], place[1], place[2]);
	snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", place[0] & 0xffff, place[1], place[2]);
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
	ENTER_GPU(device);
	return text(device->index, "uuid", uuid, length);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
	ENTER_GPU(device);
	return text(device->index, "serial", serial, length);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
	ENTER_GPU(device);
	return text(device->index, "name", name, length);
}

struct memory { unsigned long long total, free, used; };

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *memory)
{
	ENTER_GPU(device);
	NEED(memory);
	memory->total = memory->free = number(device->index, "memory", 0);
	memory->used = 0;
	return SUCCESS;
}

/* --- persistence and compute mode ------------------------------------------------------------------------------ */

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode)
{
	ENTER_GPU(device);
	return one(device->index, "persistence", mode);
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode)
{
	ENTER_GPU(device);
	NEED_ROOT();
	if (mode > 1)
		return INVALID_ARGUMENT;
	put(device->index, "persistence", "%u", mode);
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
	ENTER_GPU(device);
	return one(device->index, "compute", mode);
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
	ENTER_GPU(device);
	NEED_ROOT();
	if (mode > 3)
		return INVALID_ARGUMENT;
	if (mode == 1)	/* exclusive thread: support removed */
		return NOT_SUPPORTED;
	put(device->index, "compute", "%u", mode);
	return SUCCESS;
}

/* --- clocks ---------------------------------------------------------------------------------------------------- */

/* The graphics clocks: every step from the highest down to the lowest. */
static unsigned graphics(int gpu, unsigned *found, unsigned room)
{
	unsigned high = (unsigned)number(gpu, "graphics_max", 0), low = (unsigned)number(gpu, "graphics_min", 210);
	unsigned step = (unsigned)number(gpu, "graphics_step", 15), n = 0;

	for (unsigned clock = high; clock >= low && n < room; clock -= step)
		found[n++] = clock;
	return n;
}

static unsigned supported(int gpu, int memory, unsigned *found, unsigned room)
{
	return memory ? list(gpu, "memory_clocks", found, room) : graphics(gpu, found, room);
}

/* Two steps: first how many there are, then the clocks. */
static nvmlReturn_t given(const unsigned *found, unsigned n, unsigned *room, unsigned *clocks)
{
	if (n == 0)
		return NOT_SUPPORTED;
	if (*room < n || !clocks) {
		nvmlReturn_t refused = *room < n ? INSUFFICIENT_SIZE : INVALID_ARGUMENT;
		*room = n;
		return refused;
	}
	memcpy(clocks, found, n * sizeof *clocks);
	*room = n;
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *room, unsigned *clocks)
{
	unsigned found[256];

	ENTER_GPU(device);
	NEED(room);
	return given(found, supported(device->index, 1, found, 256), room, clocks);
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory, unsigned *room, unsigned *clocks)
{
	unsigned found[256], n, i;

	ENTER_GPU(device);
	NEED(room);
	n = supported(device->index, 1, found, 256);
	for (i = 0; i < n && found[i] != memory; i++)
		;
	if (i == n)
		return NOT_FOUND;
	return given(found, supported(device->index, 0, found, 256), room, clocks);
}

/* The highest supported clock that is not above what is locked. */
static unsigned held(int gpu, int memory, unsigned now)
{
	unsigned range[2], found[256], n;

	if (list(gpu, memory ? "memory_lock" : "gpu_lock", range, 2) != 2 || !range[1] || range[0] >= LIMIT_IDS)
		return now;
	now = now < range[0] ? range[0] : now > range[1] ? range[1] : now;
	n = supported(gpu, memory, found, 256);
	for (unsigned i = 0; i < n; i++)
		if (found[i] <= now)
			return found[i];
	return now;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *clock)
{
	static const char *const keys[] = { "graphics_now", "sm_now", "memory_now", "video_now" };
	nvmlReturn_t refused;

	ENTER_GPU(device);
	if (type >= sizeof keys / sizeof *keys)
		return INVALID_ARGUMENT;
	refused = one(device->index, keys[type], clock);
	if (!refused)
		*clock = held(device->index, type == MEMORY, *clock);
	return refused;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *clock)
{
	static const char *const keys[] = { "graphics_max", "sm_max", "memory_max", "video_max" };

	ENTER_GPU(device);
	if (type >= sizeof keys / sizeof *keys)
		return INVALID_ARGUMENT;
	return one(device->index, keys[type], clock);
}

static nvmlReturn_t locked(int gpu, int memory, unsigned low, unsigned high)
{
	unsigned found[256], n = supported(gpu, memory, found, 256);
	int ids = (low >= LIMIT_IDS) + (high >= LIMIT_IDS);

	if (n == 0)
		return NOT_SUPPORTED;
	if (ids == 1 || low > high || (!ids && (low < found[n - 1] || high > found[0])))
		return INVALID_ARGUMENT;
	put(gpu, memory ? "memory_lock" : "gpu_lock", "%u %u", low, high);
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned low, unsigned high)
{
	ENTER_GPU(device);
	NEED_ROOT();
	return locked(device->index, 0, low, high);
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
	ENTER_GPU(device);
	NEED_ROOT();
	put(device->index, "gpu_lock", "0 0");
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned low, unsigned high)
{
	ENTER_GPU(device);
	NEED_ROOT();
	return locked(device->index, 1, low, high);
}

nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
	ENTER_GPU(device);
	NEED_ROOT();
	put(device->index, "memory_lock", "0 0");
	return SUCCESS;
}

static nvmlReturn_t reasons(nvmlDevice_t device, unsigned long long *mask)
{
	NEED(mask);
	*mask = number(device->index, "reasons", 1);
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *mask)
{
	ENTER_GPU(device);
	return reasons(device, mask);
}

#ifndef OLD
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *mask)
{
	ENTER_GPU(device);
	return reasons(device, mask);
}
#endif

/* --- power ----------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *limit)
{
	ENTER_GPU(device);
	return one(device->index, "power_limit", limit);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *low, unsigned *high)
{
	nvmlReturn_t refused;

	ENTER_GPU(device);
	refused = one(device->index, "power_min", low);
	return refused ? refused : one(device->index, "power_max", high);
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *limit)
{
	ENTER_GPU(device);
	return one(device->index, "power_default", limit);
}

/* The lower of what was set and what holds from outside ("power_cap"). */
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *limit)
{
	unsigned cap = UINT32_MAX;
	nvmlReturn_t refused;

	ENTER_GPU(device);
	refused = one(device->index, "power_limit", limit);
	if (!refused && !one(device->index, "power_cap", &cap) && cap < *limit)
		*limit = cap;
	return refused;
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned limit)
{
	unsigned low, high;

	ENTER_GPU(device);
	NEED_ROOT();
	if (one(device->index, "power_min", &low) || one(device->index, "power_max", &high))
		return NOT_SUPPORTED;
	if (limit < low || limit > high)
		return INVALID_ARGUMENT;
	put(device->index, "power_limit", "%u", limit);
	return SUCCESS;
}

/* --- ECC, MIG: what is pending becomes current at a reset ------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	nvmlReturn_t refused;

	ENTER_GPU(device);
	refused = one(device->index, "ecc_current", current);
	return refused ? refused : one(device->index, "ecc_pending", pending);
}

nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, unsigned mode)
{
	unsigned current;

	ENTER_GPU(device);
	NEED_ROOT();
	if (mode > 1)
		return INVALID_ARGUMENT;
	if (one(device->index, "ecc_current", &current))
		return NOT_SUPPORTED;
	put(device->index, "ecc_pending", "%u", mode);
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	nvmlReturn_t refused;

	ENTER_GPU(device);
	refused = one(device->index, "mig_current", current);
	return refused ? refused : one(device->index, "mig_pending", pending);
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *status)
{
	unsigned current;

	ENTER_GPU(device);
	NEED(status);
	NEED_ROOT();
	if (mode > 1)
		return INVALID_ARGUMENT;
	if (one(device->index, "mig_current", &current))
		return NOT_SUPPORTED;
	*status = SUCCESS;
	put(device->index, "mig_pending", "%u", mode);
	if (mode == current)
		return SUCCESS;
	if (number(device->index, "mig_busy", 0))
		*status = IN_USE;
	else if (number(device->index, "mig_needs_reset", 0))
		*status = RESET_REQUIRED;
	else
		put(device->index, "mig_current", "%u", mode);
	return SUCCESS;
}

/* --- links, fabric, memory --------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
	char key[32];

	ENTER_GPU(device);
	NEED(active);
	if (link >= LINKS_OF_THE_DRIVER)
		return INVALID_ARGUMENT;
	if (link >= number(device->index, "links", 0))
		return NOT_SUPPORTED;
	snprintf(key, sizeof key, "link:%u", link);
	*active = (unsigned)number(device->index, key, 1);
	return *active == 2 ? NOT_SUPPORTED : SUCCESS;
}

/* nvmlGpuFabricState_t is an unsigned char; what lies behind it up to the next field is nobody's, and here never 0. */
struct fabric { uint8_t cluster[16]; nvmlReturn_t status; uint32_t clique; uint8_t state; };
struct fabric_v { unsigned version; uint8_t cluster[16]; nvmlReturn_t status; uint32_t clique; uint8_t state; uint32_t mask;
	uint8_t summary; };
_Static_assert(sizeof(struct fabric) == 28 && offsetof(struct fabric_v, summary) == 0x24 && sizeof(struct fabric_v) == 0x28,
	"the sizes in the versions of nvml.h: 0x02000024 and 0x03000028");
enum { NOBODYS = 0xee };

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, struct fabric *info)
{
	unsigned state;

	ENTER_GPU(device);
	NEED(info);
	if (one(device->index, "fabric_state", &state))
		return NOT_SUPPORTED;
	memset(info, NOBODYS, sizeof *info);
	memset(info->cluster, 0, sizeof info->cluster);
	info->clique = 0;
	info->state = (uint8_t)state;
	info->status = (nvmlReturn_t)number(device->index, "fabric_status", SUCCESS);
	return SUCCESS;
}

#ifndef OLD
/* The caller says which structure it has: size and number in one word; the driver refuses those that it does not know. */
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, struct fabric_v *info)
{
	const size_t second = offsetof(struct fabric_v, summary), third = sizeof *info;
	unsigned state, newest;
	size_t size;

	ENTER_GPU(device);
	NEED(info);
	newest = (unsigned)number(SYSTEM, "fabric_newest", 3);
	if (info->version == (2u << 24 | second) && newest >= 2)
		size = second;
	else if (info->version == (3u << 24 | third) && newest >= 3)
		size = third;
	else
		return ARGUMENT_VERSION_MISMATCH;
	if (one(device->index, "fabric_state", &state))
		return NOT_SUPPORTED;
	memset(info->cluster, NOBODYS, size - offsetof(struct fabric_v, cluster));
	memset(info->cluster, 0, sizeof info->cluster);
	info->clique = 0;
	info->state = (uint8_t)state;
	info->status = (nvmlReturn_t)number(device->index, "fabric_status", SUCCESS);
	info->mask = (uint32_t)number(device->index, "fabric_mask", 0);
	if (size == third)
		info->summary = (uint8_t)number(device->index, "fabric_summary", 0);
	return SUCCESS;
}
#endif

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable, unsigned *uncorrectable,
				       unsigned *pending, unsigned *failed)
{
	unsigned rows[4];

	ENTER_GPU(device);
	NEED(correctable && uncorrectable && pending && failed);
	if (list(device->index, "rows", rows, 4) != 4)
		return NOT_SUPPORTED;
	*correctable = rows[0];
	*uncorrectable = rows[1];
	*pending = rows[2];
	*failed = rows[3];
	return SUCCESS;
}
