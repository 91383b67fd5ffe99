// Reads one call of a tool while its text arrives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::serve {

/// Reads a call byte by byte. Returns the name as soon as it is complete, and the arguments as they come.
/// A call is a JSON object, {"name": …, "arguments": {…}}. The arguments are the text of the member "arguments", or
/// "parameters", without the white space around it. This is an object, or a string that has one. null and "" count as
/// no arguments. Other members are skipped. With `names_first`, a call is a name, the marks of its syntax, and the
/// object of the arguments. One owner, no locking.
class ToolCallScanner {
 public:
  explicit ToolCallScanner(bool names_first) : state_(names_first ? State::kHeader : State::kOpen) {}
  /// Reads the bytes up to the end of the call. Returns how many it took.
  std::size_t Add(std::string_view text);
  /// Returns whether the call is complete.
  bool done() const { return state_ == State::kDone; }
  /// Returns whether the text is no call, or has no name, or arguments of another kind, or twice.
  bool failed() const { return state_ == State::kFailed; }
  /// Returns whether the name is known.
  bool has_name() const { return has_name_; }
  const std::string& name() const { return name_; }
  /// Returns whether there were arguments so far.
  bool has_arguments() const { return has_arguments_; }
  /// Returns the text of the arguments that was not taken yet. It is empty as long as the name is not known.
  std::string TakeArguments();

 private:
  enum class State : std::uint8_t { kHeader, kOpen, kKey, kInKey, kColon, kValue, kInValue, kNext, kDone, kFailed };
  void Byte(char c);
  void InHeader(char c);
  void BeginValue(char c);
  /// Takes a byte of a value. Returns false if the value has ended before it.
  bool InValue(char c);
  void EndValue();

  State state_;
  bool is_only_value_ = false;  ///< the call ends with the arguments
  bool has_members_ = false, has_name_ = false, has_arguments_ = false;
  std::string key_, value_, name_, arguments_;
  // Where the scanner is within the value.
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false, is_scalar_ = false;
};

}  // namespace millrace::serve
