// A library with the functions of NCCL whose ranks are threads of one process and whose device
// memory is theirs. It takes bytes only. The variable FAKE_NCCL_FAILS names a call that fails.
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace {

constexpr int kSuccess = 0, kInternalError = 3, kInvalidArgument = 4;
constexpr int kUint8 = 1;

struct Id {
  char bytes[128];
};

struct Message {
  const void* from;
  std::size_t count;
  bool taken;
};

// What the ranks of one id share.
struct Job {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, joined = 0;
  // A round is complete when every rank has put its pointer and, after copying, left.
  std::vector<const void*> pointers;
  int arrived = 0, left = 0;
  std::map<std::pair<int, int>, std::vector<Message*>> mail;
};

struct Comm {
  Job* job;
  int rank;
};

struct Transfer {
  Comm* comm;
  const void* from;
  void* to;
  std::size_t count;
  int peer;
};
thread_local int group_depth = 0;
thread_local std::vector<Transfer> group;

std::mutex jobs_mutex;
std::map<int, Job> jobs;
int next_job = 1;

bool fails(const char* call) {
  const char* name = std::getenv("FAKE_NCCL_FAILS");
  return name != nullptr && std::strcmp(name, call) == 0;
}

// Every rank puts a pointer, then copy(pointers) runs on each, then all go on.
template <typename Copy>
void meet(Comm* comm, const void* mine, const Copy& copy) {
  Job& job = *comm->job;
  std::unique_lock lock(job.mutex);
  job.changed.wait(lock, [&] { return job.left == 0; });
  job.pointers.resize(static_cast<std::size_t>(job.size));
  job.pointers[static_cast<std::size_t>(comm->rank)] = mine;
  if (++job.arrived == job.size) job.left = job.size;
  job.changed.notify_all();
  job.changed.wait(lock, [&] { return job.arrived == job.size; });
  copy(job.pointers);
  if (--job.left == 0) job.arrived = 0;
  job.changed.notify_all();
  job.changed.wait(lock, [&] { return job.left == 0; });
}

void run_group() {
  std::vector<Message> sent(group.size());
  for (std::size_t i = 0; i < group.size(); ++i) {
    const Transfer& t = group[i];
    if (!t.from) continue;
    sent[i] = {t.from, t.count, false};
    const std::lock_guard lock(t.comm->job->mutex);
    t.comm->job->mail[{t.comm->rank, t.peer}].push_back(&sent[i]);
    t.comm->job->changed.notify_all();
  }
  for (const Transfer& t : group) {
    if (!t.to) continue;
    std::unique_lock lock(t.comm->job->mutex);
    std::vector<Message*>& mail = t.comm->job->mail[{t.peer, t.comm->rank}];
    t.comm->job->changed.wait(lock, [&] { return !mail.empty(); });
    std::memcpy(t.to, mail.front()->from, t.count);
    mail.front()->taken = true;
    mail.erase(mail.begin());
    t.comm->job->changed.notify_all();
  }
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (!group[i].from) continue;
    std::unique_lock lock(group[i].comm->job->mutex);
    group[i].comm->job->changed.wait(lock, [&] { return sent[i].taken; });
  }
  group.clear();
}

int transfer(const Transfer& t, int type) {
  if (type != kUint8) return kInvalidArgument;
  group.push_back(t);
  if (group_depth == 0) run_group();
  return kSuccess;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 29901;
  return kSuccess;
}

int ncclGetUniqueId(Id* id) {
  if (fails("ncclGetUniqueId")) return kInternalError;
  const std::lock_guard lock(jobs_mutex);
  *id = {};
  std::memcpy(id->bytes, &next_job, sizeof next_job);
  ++next_job;
  return kSuccess;
}

int ncclCommInitRank(void** comm, int size, Id id, int rank) {
  if (fails("ncclCommInitRank")) return kInternalError;
  int number = 0;
  std::memcpy(&number, id.bytes, sizeof number);
  Job* job = nullptr;
  {
    const std::lock_guard lock(jobs_mutex);
    job = &jobs[number];
  }
  std::unique_lock lock(job->mutex);
  job->size = size;
  ++job->joined;
  job->changed.notify_all();
  job->changed.wait(lock, [&] { return job->joined >= size; });
  *comm = new Comm{job, rank};
  return kSuccess;
}

int ncclCommDestroy(void* comm) {
  delete static_cast<Comm*>(comm);
  return kSuccess;
}

int ncclAllGather(const void* from, void* to, std::size_t count, int type, void* comm, void*) {
  if (fails("ncclAllGather")) return kInternalError;
  if (type != kUint8) return kInvalidArgument;
  meet(static_cast<Comm*>(comm), from, [&](const std::vector<const void*>& all) {
    for (std::size_t r = 0; r < all.size(); ++r) {
      std::memcpy(static_cast<char*>(to) + r * count, all[r], count);
    }
  });
  return kSuccess;
}

#if !defined(FAKE_NCCL_WITHOUT_BROADCAST)
int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, void* comm,
                  void*) {
  if (type != kUint8) return kInvalidArgument;
  meet(static_cast<Comm*>(comm), from, [&](const std::vector<const void*>& all) {
    const void* source = all[static_cast<std::size_t>(root)];
    if (source != to) std::memcpy(to, source, count);
  });
  return kSuccess;
}
#endif

int ncclSend(const void* from, std::size_t count, int type, int peer, void* comm, void*) {
  return transfer({static_cast<Comm*>(comm), from, nullptr, count, peer}, type);
}

int ncclRecv(void* to, std::size_t count, int type, int peer, void* comm, void*) {
  return transfer({static_cast<Comm*>(comm), nullptr, to, count, peer}, type);
}

int ncclGroupStart() {
  ++group_depth;
  return kSuccess;
}

int ncclGroupEnd() {
  if (--group_depth == 0) run_group();
  return kSuccess;
}

const char* ncclGetErrorString(int result) {
  return result == kInternalError ? "internal error" : "invalid argument";
}

}  // extern "C"
