#include <algorithm>

#include "millrace/http/headers.h"

namespace millrace::http {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

bool SameName(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::ranges::equal(a, b, {}, Lower, Lower);
}

}  // namespace

void Headers::Set(std::string_view name, std::string value) {
  auto first = std::ranges::find_if(fields_, [&](const auto& field) { return SameName(field.first, name); });
  if (first == fields_.end()) return Add(name, std::move(value));
  first->second = std::move(value);
  fields_.erase(
      std::remove_if(first + 1, fields_.end(), [&](const auto& field) { return SameName(field.first, name); }),
      fields_.end());
}

void Headers::Add(std::string_view name, std::string value) { fields_.emplace_back(name, std::move(value)); }

std::string_view Headers::Get(std::string_view name) const {
  for (const auto& [field, value] : fields_) {
    if (SameName(field, name)) return value;
  }
  return {};
}

bool Headers::Has(std::string_view name) const {
  return std::ranges::any_of(fields_, [&](const auto& field) { return SameName(field.first, name); });
}

void Headers::Remove(std::string_view name) {
  std::erase_if(fields_, [&](const auto& field) { return SameName(field.first, name); });
}

Headers ContentType(std::string type) {
  Headers headers;
  headers.Set("Content-Type", std::move(type));
  return headers;
}

}  // namespace millrace::http
