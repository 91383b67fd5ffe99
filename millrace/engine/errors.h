// Turns the exceptions of libtorch into errors.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "millrace/base/result.h"

namespace millrace::engine {

/// Carries an error through code that throws, such as a backward pass, up to CatchTorch().
class ErrorException final : public std::exception {
 public:
  explicit ErrorException(Error error) : error_(std::move(error)), text_(error_.ToString()) {}
  const char* what() const noexcept override { return text_.c_str(); }
  const Error& error() const { return error_; }

 private:
  Error error_;
  std::string text_;
};

/// Throws the error of a failed operation.
inline void ThrowIfFailed(const Status& status) {
  if (!status) throw ErrorException(status.error());
}

/// Returns the error of an allocation on a GPU that failed with the message `text` of libtorch: how much was asked for,
/// and how much is free.
Error OutOfDeviceMemory(std::string_view what, std::string_view text);

/// Runs `work` and returns its result. Turns an exception into an error "`what`: first line of the exception".
/// Errors: the error in an ErrorException; kResourceExhausted on std::bad_alloc and if a GPU has
/// no memory left; kInternal on other exceptions.
template <class Work>
auto CatchTorch(std::string_view what, Work&& work) -> Result<std::invoke_result_t<Work>> {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Work>>) {
      std::forward<Work>(work)();
      return {};
    } else {
      return std::forward<Work>(work)();
    }
  } catch (const ErrorException& failed) {
    return Fail(failed.error().Context(std::string(what)));
  } catch (const std::bad_alloc&) {
    return Fail(Code::kResourceExhausted, "{}: out of memory", what);
  } catch (const c10::OutOfMemoryError& error) {
    return Fail(OutOfDeviceMemory(what, error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return Fail(Code::kInternal, "{}: {}", what, text.substr(0, text.find('\n')));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return Fail(Code::kInternal, "{}: {}", what, text.substr(0, text.find('\n')));
  }
}

}  // namespace millrace::engine
