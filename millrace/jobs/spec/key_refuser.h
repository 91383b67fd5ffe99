// The visitor of keys that a job file must not have, because of what its other keys say.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/jobs/spec/spec_visitor.h"

namespace millrace::jobs {

/// Hands on the names of the keys that it visits, to be refused.
class KeyRefuser {
 public:
  using Refuse = std::function<void(std::string_view)>;
  explicit KeyRefuser(Refuse refuse) : refuse_(std::move(refuse)) {}

  void Text(std::string_view key, std::string&, TextKind, bool) { refuse_(key); }
  void Word(std::string_view key, std::string&, const Choice&) { refuse_(key); }
  void Words(std::string_view key, std::vector<std::string>&, const Choice&) { refuse_(key); }
  template <class... Rest>
  void AllOrWords(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void Texts(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void Command(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void TextMap(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void List(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void Integer(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void OptionalInteger(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void Number(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void OptionalNumber(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void TwoNumbers(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void FirstAndLast(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void Bytes(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void Flag(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void OptionalFlag(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void TimeLimit(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void Section(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void OptionalSection(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void TextOrTexts(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void SectionOr(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void Extent(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void StagesOrSchedule(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void Family(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void Sources(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void OptionalSources(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void MetricDefinitions(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void Neutral(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class... Rest>
  void Refused(std::string_view key, Rest&&...) {
    refuse_(key);
  }
  template <class Fields>
  void Only(const Condition&, Fields fields) {
    fields(*this);
  }
  template <class Keys>
  void OnlyRead(Keys keys) {
    keys(*this);
  }
  void ExactlyOne(std::initializer_list<std::string_view>) {}
  void Options(std::span<const std::string_view>, Json&) {}

 private:
  Refuse refuse_;
};

}  // namespace millrace::jobs
