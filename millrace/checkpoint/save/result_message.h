// Results as the strings that ranks send each other.
#pragma once

#include <string>

#include "millrace/base/result.h"

namespace millrace::checkpoint {

/// Returns a text or an error as one message. The form is private to this file pair: all ranks of a job run the same
/// version of Millrace.
std::string EncodeResult(const Result<std::string>& result);

/// Returns what EncodeResult was given on the other rank. An error arrives with its code and with its whole chain as
/// its message.
/// Errors: kInternal if the message is empty or has another form, as if the other rank ran another version.
Result<std::string> DecodeResult(std::string message);

}  // namespace millrace::checkpoint
