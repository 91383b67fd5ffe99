// The templates by which a record is read as a prompt with two answers.
#pragma once

#include <string>

namespace millrace::data {

/// Plain data. Templates as DatasetOptions::template_text. The defaults are the columns that trl reads.
struct PreferenceTemplates {
  std::string prompt = "{prompt}";      ///< what both answers answer
  std::string chosen = "{chosen}";      ///< the better answer
  std::string rejected = "{rejected}";  ///< the other one
  bool operator==(const PreferenceTemplates&) const = default;
};

}  // namespace millrace::data
