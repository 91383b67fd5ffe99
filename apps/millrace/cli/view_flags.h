// --at and --version-id: old versions of objects in place of the current ones.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/object/location.h"
#include "millrace/object/url.h"

namespace millrace::cli {

/// The flags about versions. Without one, commands see the current versions.
struct ViewFlags {
  std::optional<WallTime> at;
  std::string version;

  /// Adds --at, and, for commands that read single objects, --version-id.
  void AddTo(CLI::App& command, bool with_version);
  bool any() const { return at || !version.empty(); }
  /// Replaces the store of a place by its old versions. Errors: kInvalidArgument if the URL is not of a bucket, or
  /// names no object for --version-id.
  Status Apply(const object::Url& url, object::Location& place) const;
};

/// Adds --at, a time in UTC (2026-11-20T12:00, 2026-11-20) or an age (2h, 7d).
void AddMomentFlag(CLI::App& command, std::optional<WallTime>& at, const std::string& description);

}  // namespace millrace::cli
