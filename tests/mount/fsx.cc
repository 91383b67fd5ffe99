// Random operations on one file, each held against a model in memory: reads, writes, mappings, truncations, holes,
// syncs, reopenings. The idea is that of the file system exercisers which every kernel is tested with.
//
//   mount_fsx FILE --seed N (--seconds S | --operations N) [--size BYTES] [--copy FILE]
//
// Ends with status 1, and the operations that led there, when the file differs. --copy leaves the model, for others to
// compare with.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"

namespace {

using millrace::Random;

constexpr std::size_t kRemembered = 40;

class Exerciser {
 public:
  Exerciser(std::string path, std::uint64_t seed, std::uint64_t largest)
      : path_(std::move(path)), largest_(largest), random_(seed) {
    Open(O_CREAT | O_TRUNC);
  }
  ~Exerciser() { ::close(fd_); }

  void Step() {
    static constexpr void (Exerciser::* kOperations[])() = {
        &Exerciser::Read,  &Exerciser::Read,     &Exerciser::Read,  &Exerciser::ReadMapping,  &Exerciser::Write,
        &Exerciser::Write, &Exerciser::Write,    &Exerciser::Write, &Exerciser::WriteMapping, &Exerciser::Append,
        &Exerciser::Zero,  &Exerciser::Truncate, &Exerciser::Grow,  &Exerciser::Sync,         &Exerciser::Reopen,
        &Exerciser::Stat,  &Exerciser::DropPages};
    (this->*kOperations[random_.Below(std::size(kOperations))])();
  }

  void CheckAll() {
    Told("compare all", 0, model_.size());
    Compare(0, model_.size());
    Stat();
  }
  const std::string& model() const { return model_; }
  std::uint64_t operations() const { return operations_; }

 private:
  template <class... Arguments>
  void Told(const char* what, Arguments... arguments) {
    ++operations_;
    std::string line = fmt::format("{} {}", operations_, what);
    ((line += fmt::format(" {:#x}", arguments)), ...);
    recent_.push_back(std::move(line));
    if (recent_.size() > kRemembered) recent_.pop_front();
  }
  [[noreturn]] void Die(const std::string& why) {
    for (const std::string& line : recent_) fmt::print(stderr, "{}\n", line);
    fmt::print(stderr, "{}: {}\n", path_, why);
    std::exit(1);
  }
  void Must(bool done, const char* call) {
    if (!done) Die(fmt::format("{}: {}", call, std::strerror(errno)));
  }

  void Open(int more) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC | more, 0644);
    Must(fd_ >= 0, "open");
  }
  /// A range that begins within the file, or not far beyond; mostly short.
  std::pair<std::uint64_t, std::uint64_t> Range(std::uint64_t end) {
    const std::uint64_t offset = random_.Below(end + 1);
    const std::uint64_t most = random_.Below(4) == 0 ? largest_ / 4 : 16 * 1024;
    return {offset, std::min(1 + random_.Below(most), largest_ - std::min(offset, largest_))};
  }
  std::string Noise(std::uint64_t length) {
    std::string bytes(length, '\0');
    const char tag = static_cast<char>('a' + operations_ % 26);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = i % 8 == 0 ? static_cast<char>(random_.Next()) : tag;
    return bytes;
  }
  void Overwrite(std::uint64_t offset, const std::string& bytes) {
    if (model_.size() < offset + bytes.size()) model_.resize(offset + bytes.size(), '\0');
    model_.replace(offset, bytes.size(), bytes);
  }
  void HoldAgainst(std::uint64_t offset, const char* found, std::uint64_t length) {
    for (std::uint64_t i = 0; i < length; ++i) {
      if (found[i] == model_[offset + i]) continue;
      std::uint64_t end = i;
      while (end < length && found[end] != model_[offset + end]) ++end;
      Die(fmt::format("{:#x} to {:#x} differ: {:#04x} where there should be {:#04x}", offset + i, offset + end,
                      found[i], model_[offset + i]));
    }
  }
  void Compare(std::uint64_t offset, std::uint64_t length) {
    std::string found(length, '?');
    for (std::uint64_t at = 0; at < length;) {
      const ssize_t n = ::pread(fd_, found.data() + at, length - at, static_cast<off_t>(offset + at));
      Must(n >= 0, "pread");
      if (n == 0) Die(fmt::format("ends at {:#x} of {:#x}", offset + at, model_.size()));
      at += static_cast<std::uint64_t>(n);
    }
    HoldAgainst(offset, found.data(), length);
  }

  // --- Operations ---

  void Read() {
    if (model_.empty()) return;
    auto [offset, length] = Range(model_.size() - 1);
    length = std::min(length, model_.size() - offset);
    Told("read", offset, length);
    Compare(offset, length);
  }
  void Write() {
    auto [offset, length] = Range(std::min<std::uint64_t>(model_.size() + model_.size() / 8, largest_ - 1));
    Told("write", offset, length);
    const std::string bytes = Noise(length);
    Must(::pwrite(fd_, bytes.data(), length, static_cast<off_t>(offset)) == static_cast<ssize_t>(length), "pwrite");
    Overwrite(offset, bytes);
  }
  void Append() {
    const std::uint64_t length = 1 + random_.Below(3000), end = model_.size();
    if (end + length > largest_) return;
    Told("append", end, length);
    const std::string bytes = Noise(length);
    const int fd = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    Must(fd >= 0, "open to append");
    Must(::write(fd, bytes.data(), length) == static_cast<ssize_t>(length), "append");
    Must(::close(fd) == 0, "close after append");
    Overwrite(end, bytes);
  }
  void ReadMapping() {
    if (model_.empty()) return;
    auto [offset, length] = Range(model_.size() - 1);
    length = std::min(length, model_.size() - offset);
    Told("read a mapping", offset, length);
    Mapped(offset, length, PROT_READ, [&](char* bytes) { HoldAgainst(offset, bytes, length); });
  }
  void WriteMapping() {
    if (model_.empty()) return;
    auto [offset, length] = Range(model_.size() - 1);
    length = std::min(length, model_.size() - offset);
    const bool sync = random_.Below(2) == 0;
    Told(sync ? "write a mapping, and sync" : "write a mapping", offset, length);
    const std::string bytes = Noise(length);
    Mapped(offset, length, PROT_READ | PROT_WRITE, [&](char* at) {
      std::memcpy(at, bytes.data(), length);
      const auto page = reinterpret_cast<std::uintptr_t>(at) & ~std::uintptr_t{4095};
      const std::size_t whole = reinterpret_cast<std::uintptr_t>(at) + length - page;
      if (sync) Must(::msync(reinterpret_cast<void*>(page), whole, MS_SYNC) == 0, "msync");
    });
    Overwrite(offset, bytes);
  }
  template <class Use>
  void Mapped(std::uint64_t offset, std::uint64_t length, int protection, Use use) {
    const std::uint64_t page = offset & ~std::uint64_t{4095};
    void* mapping = ::mmap(nullptr, length + offset - page, protection, MAP_SHARED, fd_, static_cast<off_t>(page));
    Must(mapping != MAP_FAILED, "mmap");
    use(static_cast<char*>(mapping) + (offset - page));
    Must(::munmap(mapping, length + offset - page) == 0, "munmap");
  }
  void Zero() {
    if (model_.empty()) return;
    auto [offset, length] = Range(model_.size() - 1);
    const bool punch = random_.Below(2) == 0;
    if (!punch) length = std::min(length, largest_ - offset);
    Told(punch ? "punch a hole" : "zero", offset, length);
    const int mode = punch ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE : FALLOC_FL_ZERO_RANGE;
    Must(::fallocate(fd_, mode, static_cast<off_t>(offset), static_cast<off_t>(length)) == 0, "fallocate");
    if (punch) length = std::min(length, model_.size() - offset);
    Overwrite(offset, std::string(length, '\0'));
  }
  void Truncate() {
    const std::uint64_t size = random_.Below(8) == 0 ? 0 : random_.Below(largest_);
    Told("truncate", size);
    Must(random_.Below(2) == 0 ? ::ftruncate(fd_, static_cast<off_t>(size)) == 0
                               : ::truncate(path_.c_str(), static_cast<off_t>(size)) == 0,
         "truncate");
    model_.resize(size, '\0');
  }
  void Grow() {
    const std::uint64_t size = std::min(model_.size() + random_.Below(50'000) + 1, largest_);
    if (size <= model_.size()) return;
    Told("allocate", model_.size(), size);
    Must(::posix_fallocate(fd_, static_cast<off_t>(model_.size()), static_cast<off_t>(size - model_.size())) == 0,
         "posix_fallocate");
    model_.resize(size, '\0');
  }
  void Sync() {
    Told("fsync");
    Must(::fsync(fd_) == 0, "fsync");
  }
  void Reopen() {
    Told("close and open");
    Must(::close(fd_) == 0, "close");
    Open(0);
  }
  void Stat() {
    struct stat info{};
    Must(::fstat(fd_, &info) == 0, "fstat");
    if (static_cast<std::uint64_t>(info.st_size) == model_.size()) return;
    Die(fmt::format("has {:#x} bytes, not {:#x}", info.st_size, model_.size()));
  }
  void DropPages() {
    Told("drop pages");
    (void)::fdatasync(fd_);
    (void)::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  }

  const std::string path_;
  const std::uint64_t largest_;
  Random random_;
  std::string model_;
  int fd_ = -1;
  std::uint64_t operations_ = 0;
  std::deque<std::string> recent_;
};

}  // namespace

int main(int count, char** arguments) {
  std::map<std::string, std::string> flags = {
      {"--seed", "1"}, {"--seconds", "0"}, {"--operations", "0"}, {"--size", "2000000"}, {"--copy", ""}};
  bool understood = count >= 2 && count % 2 == 0;
  for (int i = 2; understood && i + 1 < count; i += 2) {
    understood = flags.contains(arguments[i]);
    flags[arguments[i]] = arguments[i + 1];
  }
  if (!understood) {
    fmt::print(stderr, "mount_fsx FILE --seed N (--seconds S | --operations N) [--size BYTES] [--copy FILE]\n");
    return 2;
  }
  auto number = [&](const char* flag) { return std::strtoull(flags[flag].c_str(), nullptr, 10); };
  fmt::print("seed {}\n", number("--seed"));
  Exerciser exerciser(arguments[1], number("--seed"), number("--size"));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(number("--seconds"));
  while (exerciser.operations() < number("--operations") || std::chrono::steady_clock::now() < end) {
    exerciser.Step();
    if (exerciser.operations() % 500 == 0) exerciser.CheckAll();
  }
  exerciser.CheckAll();
  fmt::print("{} operations\n", exerciser.operations());
  if (flags["--copy"].empty()) return 0;
  return millrace::WriteFileAtomic(flags["--copy"], millrace::AsBytes(exerciser.model())) ? 0 : 1;
}
