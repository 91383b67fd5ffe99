#include "millrace/vfs/testing/crash_simulation.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "millrace/base/result.h"

namespace millrace::vfs {
namespace {

namespace fs = std::filesystem;

std::atomic<CrashSimulation*> current_life = nullptr;  ///< system calls have no other way to find it
thread_local bool within_step = false;                 ///< this thread leaves the remains: what it calls is no step

}  // namespace

CrashSimulation::CrashSimulation(fs::path staging, fs::path remains, std::uint64_t dies_at)
    : staging_(std::move(staging)), remains_(std::move(remains)), dies_at_(dies_at) {
  current_life = this;
}

CrashSimulation::~CrashSimulation() { current_life = nullptr; }

bool CrashSimulation::dead() const {
  MutexLock lock(mutex_);
  return dead_;
}

std::uint64_t CrashSimulation::steps() const {
  MutexLock lock(mutex_);
  return steps_;
}

void CrashSimulation::Die() {
  MutexLock lock(mutex_);
  if (!dead_) LeaveRemains();
}

bool CrashSimulation::Advance() {
  if (!dead_ && steps_++ >= dies_at_) LeaveRemains();
  return !dead_;
}

void CrashSimulation::LeaveRemains() {
  dead_ = true;
  within_step = true;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(staging_, error)) {
    fs::copy_file(entry.path(), remains_ / entry.path().filename(), error);
  }
  within_step = false;
}

namespace {

/// A system call of libc's, as a step where there is a life.
template <class Real, class... Arguments>
auto AsStep(Real real, Arguments... arguments) {
  CrashSimulation* life = within_step ? nullptr : current_life.load();
  if (life == nullptr) return real(arguments...);
  decltype(real(arguments...)) result;
  life->Step([&](bool) { result = real(arguments...); });
  return result;
}

template <class Function>
Function* Real(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

class CrashingStore final : public object::Store {
 public:
  CrashingStore(std::shared_ptr<object::Store> inner, CrashSimulation& life) : inner_(std::move(inner)), life_(life) {}

  std::string Describe() const override { return inner_->Describe(); }
  object::Limits limits() const override { return inner_->limits(); }

  void Head(std::string key, object::Call call, object::Done<std::optional<object::ObjectInfo>> done) override {
    if (Sees(done)) inner_->Head(std::move(key), std::move(call), std::move(done));
  }
  void Get(std::string key, object::GetOptions options, MutableByteSpan into, object::Call call,
           object::Done<std::optional<object::GetResult>> done) override {
    if (Sees(done)) inner_->Get(std::move(key), std::move(options), into, std::move(call), std::move(done));
  }
  void List(object::ListRequest request, object::Call call, object::Done<object::ListPage> done) override {
    if (Sees(done)) inner_->List(std::move(request), std::move(call), std::move(done));
  }
  void ListParts(std::string key, std::string upload, object::Call call,
                 object::Done<std::vector<object::PartInfo>> done) override {
    if (Sees(done)) inner_->ListParts(std::move(key), std::move(upload), std::move(call), std::move(done));
  }
  void ListUploads(std::string prefix, object::Call call, object::Done<std::vector<object::UploadInfo>> done) override {
    if (Sees(done)) inner_->ListUploads(std::move(prefix), std::move(call), std::move(done));
  }

  void Put(std::string key, object::Payload body, object::PutOptions options, object::Call call,
           object::Done<object::PutResult> done) override {
    if (Changes(done)) inner_->Put(std::move(key), body, std::move(options), std::move(call), std::move(done));
  }
  void Delete(std::string key, object::Call call, object::Done<void> done) override {
    if (Changes(done)) inner_->Delete(std::move(key), std::move(call), std::move(done));
  }
  void DeleteMany(std::vector<std::string> keys, object::Call call,
                  object::Done<std::vector<object::DeleteFailure>> done) override {
    if (Changes(done)) inner_->DeleteMany(std::move(keys), std::move(call), std::move(done));
  }
  void Copy(std::string source, std::string destination, object::CopyOptions options, object::Call call,
            object::Done<object::PutResult> done) override {
    if (!Changes(done)) return;
    inner_->Copy(std::move(source), std::move(destination), std::move(options), std::move(call), std::move(done));
  }
  void CreateMultipart(std::string key, object::PutOptions options, object::Call call,
                       object::Done<std::string> done) override {
    if (Changes(done)) inner_->CreateMultipart(std::move(key), std::move(options), std::move(call), std::move(done));
  }
  void UploadPart(std::string key, std::string upload, int number, object::Payload body, object::Call call,
                  object::Done<object::PartInfo> done) override {
    if (!Changes(done)) return;
    inner_->UploadPart(std::move(key), std::move(upload), number, body, std::move(call), std::move(done));
  }
  void CopyPart(std::string key, std::string upload, int number, std::string source, object::ByteRange range,
                object::CopyOptions options, object::Call call, object::Done<object::PartInfo> done) override {
    if (!Changes(done)) return;
    inner_->CopyPart(std::move(key), std::move(upload), number, std::move(source), range, std::move(options),
                     std::move(call), std::move(done));
  }
  void CompleteMultipart(std::string key, std::string upload, std::vector<object::PartInfo> parts,
                         object::PutOptions options, object::Call call, object::Done<object::PutResult> done) override {
    if (!Changes(done)) return;
    inner_->CompleteMultipart(std::move(key), std::move(upload), std::move(parts), std::move(options), std::move(call),
                              std::move(done));
  }
  void AbortMultipart(std::string key, std::string upload, object::Call call, object::Done<void> done) override {
    if (Changes(done)) inner_->AbortMultipart(std::move(key), std::move(upload), std::move(call), std::move(done));
  }
  Result<std::string> Presign(std::string_view method, std::string_view key, Duration valid_for) override {
    return inner_->Presign(method, key, valid_for);
  }

 private:
  template <class T>
  bool Sees(object::Done<T>& done) {
    if (!life_.dead()) return true;
    done(Fail(Code::kUnavailable, "this process is dead"));
    return false;
  }
  template <class T>
  bool Changes(object::Done<T>& done) {
    if (life_.Step([](bool) {})) return true;
    return Sees(done);
  }

  const std::shared_ptr<object::Store> inner_;
  CrashSimulation& life_;
};

}  // namespace

std::shared_ptr<object::Store> MakeCrashingStore(std::shared_ptr<object::Store> inner, CrashSimulation& life) {
  return std::make_shared<CrashingStore>(std::move(inner), life);
}

}  // namespace millrace::vfs

// These stand before libc's, in this program only.

using millrace::vfs::AsStep;
using millrace::vfs::Real;

extern "C" {

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  static auto* const real = Real(&pwrite, "pwrite");
  const size_t half = size / 2;  // a write may be cut off
  if (half == 0) return AsStep(real, fd, bytes, size, offset);
  const ssize_t first = AsStep(real, fd, bytes, half, offset);
  if (first != static_cast<ssize_t>(half)) return first;
  const ssize_t second = AsStep(real, fd, static_cast<const char*>(bytes) + half, size - half,
                                static_cast<off_t>(offset + static_cast<off_t>(half)));
  return second < 0 ? first : first + second;
}

int ftruncate(int fd, off_t size) noexcept {
  static auto* const real = Real(&ftruncate, "ftruncate");
  return AsStep(real, fd, size);
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
  static auto* const real = Real(&fallocate, "fallocate");
  return AsStep(real, fd, mode, offset, size);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = Real(&rename, "rename");
  return AsStep(real, from, to);
}

int unlink(const char* path) noexcept {
  static auto* const real = Real(&unlink, "unlink");
  return AsStep(real, path);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  static auto* const real = Real(&renameat, "renameat");
  return AsStep(real, from_folder, from, to_folder, to);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static auto* const real = Real(&unlinkat, "unlinkat");
  return AsStep(real, folder, path, flags);
}

ssize_t copy_file_range(int from, off64_t* from_offset, int to, off64_t* to_offset, size_t size, unsigned flags) {
  static auto* const real = Real(&copy_file_range, "copy_file_range");
  return AsStep(real, from, from_offset, to, to_offset, size, flags);
}

}  // extern "C"
