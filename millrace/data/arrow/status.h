// Turns Arrow's errors into ours.
#pragma once

#include <arrow/result.h>
#include <arrow/status.h>

#include <exception>
#include <string_view>

#include "millrace/base/result.h"
#include "millrace/base/text.h"
#include "millrace/data/arrow/memory.h"

namespace millrace::data::arrow_format {

/// Returns the error of decoding bytes that were read: kUnsupported if Arrow lacks a feature or the memory limit is
/// reached, else kCorrupt.
inline Error ToError(const arrow::Status& status, std::string_view what) {
  if (status.IsOutOfMemory()) {
    return Error(Code::kUnsupported,
                 fmt::format("{}: decoding this piece takes more than {}, and no more can be held; write smaller "
                             "record batches or row groups (pyarrow: max_chunksize, row_group_size)",
                             what, FormatBytes(kMaxDecodingBytes)));
  }
  bool unsupported = status.IsNotImplemented() || status.IsCapacityError();
  return Error(unsupported ? Code::kUnsupported : Code::kCorrupt, fmt::format("{}: {}", what, status.message()));
}

/// Evaluates an arrow::Status or arrow::Result; returns its error from the enclosing function. `what` names the object.
#define MR_ARROW_TRY(what, ...)                                                                                      \
  ({                                                                                                                 \
    auto mr_arrow_result = (__VA_ARGS__);                                                                            \
    if (!mr_arrow_result.ok()) [[unlikely]]                                                                          \
      return ::millrace::Fail(                                                                                       \
          ::millrace::data::arrow_format::ToError(::millrace::data::arrow_format::StatusOf(mr_arrow_result), what)); \
    ::millrace::data::arrow_format::Unwrap(std::move(mr_arrow_result));                                              \
  })
inline arrow::Status StatusOf(const arrow::Status& status) { return status; }
inline void Unwrap(const arrow::Status&) {}
template <class T>
arrow::Status StatusOf(const arrow::Result<T>& result) {
  return result.status();
}
template <class T>
T Unwrap(arrow::Result<T> result) {
  return std::move(result).ValueUnsafe();
}

/// Calls `function`. Turns an exception into kCorrupt: Parquet's reader throws on damaged bytes.
template <class Function>
auto Guard(std::string_view what, const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception& thrown) {  // NOLINT(bugprone-empty-catch): it does not see what a template returns
    return Fail(Code::kCorrupt, "{}: {}", what, thrown.what());
  }
}

}  // namespace millrace::data::arrow_format
