// The work that one rendering may do, in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "millrace/base/result.h"

namespace millrace::jinja {

/// Counts the bytes that operations on values make and read. Templates come with models, from anywhere: a few
/// characters of one can ask for terabytes. An operation counts before it works, and stops with any result once Read(),
/// Make() or HasRoom() returns false. Whoever calls it looks at Check() before the result is used.
/// Belongs to the thread that makes it, until it is destroyed. Without one, everything is allowed.
class Work {
 public:
  /// The most bytes that values may take, and that operations may read.
  Work(std::int64_t made, std::int64_t read) : made_(made), read_(read), outer_(std::exchange(current_, this)) {}
  ~Work() { current_ = outer_; }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Count bytes, and return whether they were within the limits.
  static bool Make(std::size_t bytes) { return current_ == nullptr || current_->Take(current_->made_, bytes); }
  static bool Read(std::size_t bytes) { return current_ == nullptr || current_->Take(current_->read_, bytes); }
  /// Returns whether a value of `bytes` may still be made, without counting them. The limit is reached otherwise.
  static bool HasRoom(std::size_t bytes) {
    if (current_ == nullptr) return true;
    if (current_->made_ >= 0 && static_cast<std::uint64_t>(current_->made_) < bytes) current_->made_ = -1;
    return current_->made_ >= 0 && current_->read_ >= 0;
  }
  /// Errors: kResourceExhausted once a limit was reached.
  static Status Check() {
    if (current_ == nullptr || (current_->made_ >= 0 && current_->read_ >= 0)) return {};
    if (current_->made_ < 0) return Fail(Code::kResourceExhausted, "the template makes too much text");
    return Fail(Code::kResourceExhausted, "the template takes too much work");
  }

 private:
  bool Take(std::int64_t& left, std::size_t bytes) {
    // A limit that was reached stays reached.
    if (left >= 0) left = static_cast<std::uint64_t>(left) < bytes ? -1 : left - static_cast<std::int64_t>(bytes);
    return made_ >= 0 && read_ >= 0;
  }

  inline static thread_local Work* current_ = nullptr;
  std::int64_t made_, read_;
  Work* const outer_;
};

}  // namespace millrace::jinja
