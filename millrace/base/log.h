// Structured logs. Each line has a level, a sentence and key=value fields.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"

namespace millrace {

/// The importance of a line. kOff, as the level of a logger: no line is.
enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };
/// Reads "debug", "info", "warning", "error" or "off". Errors: kInvalidArgument, with the names that there are.
Result<LogLevel> ParseLogLevel(std::string_view name);

/// One `key=value` of a log line. Numbers and strings convert; never put a secret in one.
struct LogField {
  std::string_view key;                                                                  ///< borrowed: a literal
  std::string value;                                                                     ///< as the line shows it
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}                 ///< a text
  LogField(std::string_view k, const std::string& v) : key(k), value(v) {}               ///< a text
  LogField(std::string_view k, const char* v) : key(k), value(v) {}                      ///< a text
  LogField(std::string_view k, bool v) : key(k), value(v ? "true" : "false") {}          ///< true or false
  LogField(std::string_view k, const Error& error) : key(k), value(error.ToString()) {}  ///< with its causes
  /// A number.
  template <class T>
    requires std::is_arithmetic_v<T>
  LogField(std::string_view k, T v) : key(k), value(Digits(v)) {}

 private:
  /// Returns the shortest text that reads back as the same number; of a char, the character.
  template <class T>
  static std::string Digits(T v) {
    if constexpr (std::is_same_v<T, char>) {
      return std::string(1, v);
    } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      return FloatingDigits(v);
    } else if constexpr (std::is_integral_v<T>) {
      return std::to_string(v);
    } else {
      return FloatingDigits(static_cast<double>(v));
    }
  }
  static std::string FloatingDigits(float v);
  static std::string FloatingDigits(double v);
};

/// Receives finished lines. Implementations are thread-safe and do not fail. Tests collect lines with one of their own.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void Write(std::string_view line) = 0;  ///< without the newline
};

/// A handle to a sink. Cheap to copy. A default-constructed Logger discards every line. Thread-safe.
class Logger {
 public:
  /// Discards every line.
  Logger() = default;
  /// Lines for people, or one JSON object a line.
  enum class Format { kText, kJson };
  /// Passes lines of `level` and above to `sink`. `clock` must outlive the logger and its copies.
  Logger(std::shared_ptr<LogSink> sink, LogLevel level, Format format = Format::kText, Clock& clock = SystemClock());
  /// Returns a logger that writes to standard error.
  static Logger Stderr(LogLevel level, Format format = Format::kText);

  /// Returns a logger with the same sink that adds `field` to every line (rank=3, component=mount).
  Logger With(LogField field) const;
  /// Returns whether a line of this level would be written.
  bool Enabled(LogLevel level) const;
  /// Writes a line if its level is enabled.
  void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {}) const;

  /// Writes a line of LogLevel::kDebug.
  void Debug(std::string_view message, std::initializer_list<LogField> fields = {}) const {
    Log(LogLevel::kDebug, message, fields);
  }
  /// Writes a line of LogLevel::kInfo.
  void Info(std::string_view message, std::initializer_list<LogField> fields = {}) const {
    Log(LogLevel::kInfo, message, fields);
  }
  /// Writes a line of LogLevel::kWarning.
  void Warning(std::string_view message, std::initializer_list<LogField> fields = {}) const {
    Log(LogLevel::kWarning, message, fields);
  }
  /// Writes a line of LogLevel::kError.
  void Error(std::string_view message, std::initializer_list<LogField> fields = {}) const {
    Log(LogLevel::kError, message, fields);
  }

 private:
  struct Rep;
  std::shared_ptr<const Rep> rep_;
};

}  // namespace millrace
