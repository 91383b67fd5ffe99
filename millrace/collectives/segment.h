// Memory that several processes map.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "millrace/base/result.h"

namespace millrace::collectives {

/// Owns a mapping of a piece of memory, filled with zeros by its creator. All of it is reserved when it is made, so
/// that no access fails later. Thread-safe to read.
class Segment {
 public:
  /// Makes a segment that other processes of this machine attach to by name(). Only this user may.
  /// Errors: kNoSpace if /dev/shm is too small; those of shm_open(3).
  static Result<std::shared_ptr<Segment>> Create(std::size_t bytes);
  /// Attaches to the segment that another process made.
  static Result<std::shared_ptr<Segment>> Attach(const std::string& name, std::size_t bytes);
  /// Makes a segment for the threads of this process.
  static Result<std::shared_ptr<Segment>> CreatePrivate(std::size_t bytes);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  const std::string& name() const { return name_; }
  /// Removes the name. The memory lives as long as somebody has it mapped, so nothing is left behind by processes that
  /// are killed later. The creator's destructor does it, too.
  void Unlink();

 private:
  Segment(std::byte* data, std::size_t bytes, std::string name) : data_(data), bytes_(bytes), name_(std::move(name)) {}
  static Result<std::shared_ptr<Segment>> Map(int fd, std::size_t bytes, int flags);

  std::byte* const data_;
  const std::size_t bytes_;
  std::string name_;  ///< empty: there is none, or it is not this object's to remove
};

}  // namespace millrace::collectives
