// A list of names in their order that takes little memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

namespace millrace::transfer {

/// Names of at most 65,535 bytes. Each is kept without the bytes that it shares with the name before it (front coding),
/// so that names in order take a fraction of their length. Not thread-safe.
class SortedNames {
 public:
  void Add(std::string_view name) {
    const auto [end, other_end] = std::ranges::mismatch(last_, name);
    const auto shared = static_cast<std::uint16_t>(end - last_.begin());
    const auto rest = static_cast<std::uint16_t>(name.size() - shared);
    for (const std::uint16_t number : {shared, rest}) {
      bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
    }
    bytes_.append(name.substr(shared));
    last_ = name;
  }
  /// Calls `visit` with each name, in the order in which they were added.
  void ForEach(const std::function<void(const std::string&)>& visit) const {
    std::string name;
    for (std::size_t at = 0; at < bytes_.size();) {
      std::uint16_t shared, rest;
      std::memcpy(&shared, &bytes_[at], sizeof shared);
      std::memcpy(&rest, &bytes_[at + sizeof shared], sizeof rest);
      at += sizeof shared + sizeof rest;
      name.resize(shared);
      name.append(bytes_, at, rest);
      at += rest;
      visit(name);
    }
  }

 private:
  std::string
      bytes_;  ///< for each name: the bytes shared and the bytes that follow (two numbers), and those that follow
  std::string last_;
};

}  // namespace millrace::transfer
