// Errors are values. Every fallible function in Millrace returns Result<T>; no exception crosses a module.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace millrace {

/// The category of a failure: what a caller needs to decide what to do next. The table in error.cc maps each code to
/// an errno (mount), a process exit status (commands) and an HTTP status (servers). There is no other such table.
enum class Code : std::uint8_t {
  kInvalidArgument,     ///< the caller's input is wrong; retrying cannot help
  kNotFound,            ///< the named thing does not exist
  kAlreadyExists,       ///< creation refused: the name is taken
  kPreconditionFailed,  ///< If-Match / If-None-Match did not hold, or a concurrent change won
  kPermissionDenied,    ///< the store or the system refuses this caller
  kUnavailable,         ///< transient: connection lost, 5xx, truncated response
  kThrottled,           ///< transient: the server asks for fewer requests
  kDeadlineExceeded,    ///< the caller's deadline or a transport time-out passed
  kCancelled,           ///< the caller's stop token fired
  kCorrupt,             ///< a checksum or a format is violated; the bytes must not be used
  kIo,                  ///< the local system failed (disk, socket, process)
  kNoSpace,             ///< disk or quota full
  kResourceExhausted,   ///< a limit of Millrace (memory budget, descriptors, queue) is reached
  kUnsupported,         ///< a known operation that this build, store or file system does not offer
  kNotDirectory,        ///< the path leads through something that is no directory
  kIsDirectory,         ///< a directory stands where a file is needed
  kNotEmpty,            ///< the directory or bucket still has something in it
  kBusy,                ///< somebody else uses the thing; later it may succeed
  kReadOnly,            ///< nothing can be written there
  kNameTooLong,         ///< a name is longer than the store or the system takes
  kStale,               ///< the object changed under an open handle
  kInternal,            ///< a bug in Millrace
};

/// Returns the code's name in scripts and logs, such as "not_found".
std::string_view CodeName(Code code);

/// A failure: a code, a sentence that tells the user what to do, and the chain of causes. Immutable, cheap to copy, and
/// thread-safe.
class [[nodiscard]] Error {
 public:
  /// An error without a cause.
  Error(Code code, std::string message);

  /// The category.
  Code code() const { return rep_->code; }
  /// The sentence, without those of the causes.
  const std::string& message() const { return rep_->message; }

  /// The error that led to this one, or nullptr. Owned by this Error.
  const Error* cause() const { return rep_->cause.get(); }

  /// Returns an error with the same code and `message`, whose cause is this one.
  Error Context(std::string message) const;
  /// Returns this error with another code.
  Error WithCode(Code code) const;

  /// Returns "message: cause: cause of the cause".
  std::string ToString() const;

 private:
  struct Rep {
    Code code;
    std::string message;
    std::unique_ptr<const Error> cause;
  };
  explicit Error(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}
  std::shared_ptr<const Rep> rep_;
};

/// A value, or the error that stands in its place.
template <class T>
using Result = std::expected<T, Error>;
/// Success, or an error.
using Status = Result<void>;

/// `return Fail(std::move(error));` and, one level up, `return Fail(error.Context("uploading part 3"));`
[[nodiscard]] inline std::unexpected<Error> Fail(Error error) { return std::unexpected(std::move(error)); }
/// Returns the error for a failed system call. Code and text come from `errno_value`.
[[nodiscard]] Error ErrnoError(int errno_value, std::string what);

/// Returns whether the same operation may succeed if tried again. No other code decides this.
bool IsRetryable(Code code);

int ToErrno(Code code);               ///< for FUSE replies
int ToExitStatus(Code code);          ///< 1 failed, 2 usage, 4 not found, 5 access denied, 130 interrupted
int ToHttpStatus(Code code);          ///< for replies of servers
Code CodeFromErrno(int errno_value);  ///< the code of a failed system call
Code CodeFromHttpStatus(int status);  ///< the code of a response of 4xx or 5xx

}  // namespace millrace

/// Evaluates a Result<T>; returns its error from the enclosing function, else yields the T: `MR_TRY(store.Head(key))`.
/// Never behind another initializer in braces: g++ 12 leaks that one (check_initializers.py). Name the value first.
#define MR_TRY(...)                                               \
  ({                                                              \
    auto mr_try_result = (__VA_ARGS__);                           \
    if (!mr_try_result) [[unlikely]]                              \
      return ::std::unexpected(std::move(mr_try_result).error()); \
    *std::move(mr_try_result);                                    \
  })
