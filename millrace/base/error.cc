#include "millrace/base/error.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

namespace millrace {

static_assert(std::endian::native == std::endian::little, "durable formats are little-endian and read in place");

namespace {

struct CodeRow {
  Code code;
  std::string_view name;
  int errno_value;
  int http_status;
  bool retryable;
};

// In the order of the enum.
constexpr std::array kCodes = {
    CodeRow{Code::kInvalidArgument, "invalid_argument", EINVAL, 400, false},
    CodeRow{Code::kNotFound, "not_found", ENOENT, 404, false},
    CodeRow{Code::kAlreadyExists, "already_exists", EEXIST, 409, false},
    CodeRow{Code::kPreconditionFailed, "precondition_failed", EBUSY, 412, false},
    CodeRow{Code::kPermissionDenied, "permission_denied", EACCES, 403, false},
    CodeRow{Code::kUnavailable, "unavailable", EIO, 503, true},
    CodeRow{Code::kThrottled, "throttled", EIO, 429, true},
    CodeRow{Code::kDeadlineExceeded, "deadline_exceeded", ETIMEDOUT, 504, true},
    CodeRow{Code::kCancelled, "cancelled", EINTR, 499, false},
    CodeRow{Code::kCorrupt, "corrupt", EIO, 500, false},
    CodeRow{Code::kIo, "io", EIO, 500, false},
    CodeRow{Code::kNoSpace, "no_space", ENOSPC, 507, false},
    CodeRow{Code::kResourceExhausted, "resource_exhausted", ENOMEM, 413, false},
    CodeRow{Code::kUnsupported, "unsupported", ENOTSUP, 501, false},
    CodeRow{Code::kNotDirectory, "not_directory", ENOTDIR, 400, false},
    CodeRow{Code::kIsDirectory, "is_directory", EISDIR, 400, false},
    CodeRow{Code::kNotEmpty, "not_empty", ENOTEMPTY, 409, false},
    CodeRow{Code::kBusy, "busy", EBUSY, 409, false},
    CodeRow{Code::kReadOnly, "read_only", EROFS, 403, false},
    CodeRow{Code::kNameTooLong, "name_too_long", ENAMETOOLONG, 400, false},
    CodeRow{Code::kStale, "stale", ESTALE, 409, false},
    CodeRow{Code::kInternal, "internal", EIO, 500, false},
};
constexpr bool InEnumOrder() {
  for (std::size_t i = 0; i < kCodes.size(); ++i)
    if (kCodes[i].code != static_cast<Code>(i)) return false;
  return kCodes.size() == static_cast<std::size_t>(Code::kInternal) + 1;
}
static_assert(InEnumOrder());

const CodeRow& Row(Code code) { return kCodes[static_cast<std::size_t>(code)]; }

}  // namespace

std::string_view CodeName(Code code) { return Row(code).name; }
bool IsRetryable(Code code) { return Row(code).retryable; }
int ToErrno(Code code) { return Row(code).errno_value; }
int ToHttpStatus(Code code) { return Row(code).http_status; }

int ToExitStatus(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return 2;
    case Code::kNotFound:
      return 4;
    case Code::kPermissionDenied:
      return 5;
    case Code::kCancelled:
      return 130;
    default:
      return 1;
  }
}

Code CodeFromErrno(int errno_value) {
  switch (errno_value) {
    case EINTR:
      return Code::kCancelled;
    case EPERM:
    case EACCES:
      return Code::kPermissionDenied;
    case EDQUOT:
      return Code::kNoSpace;
    case EMFILE:
    case ENFILE:
      return Code::kResourceExhausted;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EAGAIN:
      return Code::kUnavailable;
    case EBUSY:
      return Code::kBusy;
    case EIO:
      return Code::kIo;
    default:
      break;
  }
  for (const CodeRow& row : kCodes)
    if (row.errno_value == errno_value) return row.code;
  return Code::kIo;
}

Code CodeFromHttpStatus(int status) {
  switch (status) {
    case 401:
      return Code::kPermissionDenied;
    case 403:
      return Code::kPermissionDenied;
    case 408:
      return Code::kUnavailable;
    case 409:
      return Code::kPreconditionFailed;
    case 416:
      return Code::kInvalidArgument;
    case 429:
      return Code::kThrottled;
    case 500:
      return Code::kUnavailable;
    case 502:
      return Code::kUnavailable;
    case 504:
      return Code::kUnavailable;
    default:
      break;
  }
  for (const CodeRow& row : kCodes)
    if (row.http_status == status) return row.code;
  return status >= 500 ? Code::kUnavailable : Code::kInvalidArgument;
}

Error::Error(Code code, std::string message)
    : rep_(std::make_shared<const Rep>(Rep{code, std::move(message), nullptr})) {}

Error Error::Context(std::string message) const {
  return Error(std::make_shared<const Rep>(Rep{code(), std::move(message), std::make_unique<const Error>(*this)}));
}

Error Error::WithCode(Code code) const {
  return Error(
      std::make_shared<const Rep>(Rep{code, message(), cause() ? std::make_unique<const Error>(*cause()) : nullptr}));
}

std::string Error::ToString() const {
  std::string text = message();
  for (const Error* cause = this->cause(); cause != nullptr; cause = cause->cause()) {
    text += ": ";
    text += cause->message();
  }
  return text;
}

Error ErrnoError(int errno_value, std::string what) {
  char buffer[128];
  return Error(CodeFromErrno(errno_value), fmt::format("{}: {}", what, strerror_r(errno_value, buffer, sizeof buffer)));
}

}  // namespace millrace
