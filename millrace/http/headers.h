// The header fields of an HTTP message, for client and server.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::http {

/// Header fields in order. Names compare without case.
class Headers {
 public:
  /// Replaces all fields of this name by one.
  void Set(std::string_view name, std::string value);
  /// Adds a field, even if there are others of this name.
  void Add(std::string_view name, std::string value);
  /// The first value, or "" if there is none.
  std::string_view Get(std::string_view name) const;
  bool Has(std::string_view name) const;
  /// Removes all fields of this name.
  void Remove(std::string_view name);
  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }
  std::size_t size() const { return fields_.size(); }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

/// Returns fields with the one `Content-Type`.
Headers ContentType(std::string type);

}  // namespace millrace::http
