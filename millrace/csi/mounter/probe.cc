#include "millrace/csi/mounter/probe.h"

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <thread>

#include "millrace/base/threads/sync.h"

namespace millrace::csi {
namespace {

constexpr int kMaxThreads = 4;  // per name; calls for one volume may overlap

/// How many threads ask for each name: a path, and what is asked of it. Lives as long as the process, because those
/// threads may.
class AskedPaths {
 public:
  static AskedPaths& Get() {
    static AskedPaths* const paths = new AskedPaths;  // NOLINT(cppcoreguidelines-owning-memory): never destroyed
    return *paths;
  }
  bool Add(const std::string& name) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    int& threads = threads_[name];
    if (threads == kMaxThreads) return false;
    ++threads;
    return true;
  }
  void Remove(const std::string& name) MR_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (--threads_[name] == 0) threads_.erase(name);
  }

 private:
  Mutex mutex_;
  std::map<std::string, int> threads_ MR_GUARDED_BY(mutex_);
};

std::optional<struct statvfs> AskSpace(const std::string& path) {
  struct statvfs space{};
  if (::statvfs(path.c_str(), &space) != 0) return std::nullopt;
  return space;
}

/// Calls `ask` on a thread of its own. `name`: of what is asked, for the limit of threads.
template <class Answer>
std::optional<Answer> AskWithin(Duration timeout, const std::string& name, std::function<Answer()> ask) {
  if (!AskedPaths::Get().Add(name)) return std::nullopt;
  auto promise = std::make_shared<std::promise<Answer>>();
  auto answer = promise->get_future();
  std::thread([promise, name, ask = std::move(ask)] {
    Answer found = ask();
    AskedPaths::Get().Remove(name);
    promise->set_value(std::move(found));
  }).detach();
  if (answer.wait_for(timeout) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

}  // namespace

std::optional<ProbeAnswer> ProbeMount(const std::string& path, Duration timeout) {
  return AskWithin<ProbeAnswer>(timeout, path, [path] { return mount::IdentifyDaemon(path); });
}

std::optional<struct statvfs> ProbeSpace(const std::string& path, Duration timeout) {
  auto space = AskWithin<std::optional<struct statvfs>>(timeout, path + " (space)", [path] { return AskSpace(path); });
  return space.value_or(std::nullopt);
}

}  // namespace millrace::csi
