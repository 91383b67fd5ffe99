// Turns the exceptions of libtorch into errors.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "millrace/base/result.h"

namespace millrace::engine {

/// Runs `work` and returns its result. Turns an exception into an error "`what`: first line of the exception".
/// Errors: kResourceExhausted on std::bad_alloc; kInternal on other exceptions.
template <class Work>
auto CatchTorch(std::string_view what, Work&& work) -> Result<std::invoke_result_t<Work>> {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Work>>) {
      std::forward<Work>(work)();
      return {};
    } else {
      return std::forward<Work>(work)();
    }
  } catch (const std::bad_alloc&) {
    return Fail(Code::kResourceExhausted, "{}: out of memory", what);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return Fail(Code::kInternal, "{}: {}", what, text.substr(0, text.find('\n')));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return Fail(Code::kInternal, "{}: {}", what, text.substr(0, text.find('\n')));
  }
}

}  // namespace millrace::engine
