#include "millrace/serve/constraint/string_formats.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace millrace::serve {
namespace {

/// Joins expressions.
std::string Join(std::initializer_list<std::string_view> parts) {
  std::string joined;
  for (const std::string_view part : parts) joined += part;
  return joined;
}

std::vector<std::pair<std::string, std::string>> MakeFormats() {
  const std::string year = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})";
  const std::string leap_year = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
  const std::string day =
      "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-"
      "8]))";
  const std::string date = Join({"(?:", year, "-", day, "|", leap_year, "-02-29)"});
  const std::string hour = "(?:[01][0-9]|2[0-3])", sixty = "[0-5][0-9]";
  const std::string time = Join({hour, ":", sixty, ":", sixty, "(?:\\.[0-9]{1,6})?(?:Z|[+-]", hour, ":", sixty, ")"});
  const std::string of_day = "(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
  const std::string of_year = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)";
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  const std::string host = Join({label, "(?:\\.", label, ")*"});
  const std::string byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  const std::string ipv4 = Join({byte, "(?:\\.", byte, "){3}"});
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  // RFC 4291: eight groups, or two runs of them around "::", which stands for one group at least. The last two may be
  // written as an address of version 4.
  const std::string group = "[0-9a-fA-F]{1,4}", last = Join({"(?:", group, ":", group, "|", ipv4, ")"});
  std::string ipv6 = Join({"(?:", group, ":){6}", last});
  for (int left = 0; left <= 7; ++left) {
    const std::string before = left == 0 ? "" : Join({group, "(?::", group, "){", std::to_string(left - 1), "}"});
    const int right = 7 - left;  // groups behind "::", at most
    std::string behind = right == 0 ? "" : Join({"(?:", group, ")?"});
    if (right >= 2) behind = Join({"(?:(?:", group, ":){0,", std::to_string(right - 2), "}", last, "|", behind, ")"});
    ipv6 += Join({"|", before, "::", behind});
  }
  // RFC 3986. A "%" begins two hexadecimal digits.
  const std::string hex = "%[0-9A-Fa-f]{2}", pchar = Join({"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|", hex, ")"});
  const std::string userinfo = Join({"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|", hex, ")*"});
  const std::string name = Join({"(?:[A-Za-z0-9._~!$&'()*+,;=-]|", hex, ")*"});
  const std::string authority =
      Join({"//(?:", userinfo, "@)?(?:", name, "|\\[(?:", ipv6, ")\\])(?::[0-9]*)?(?:/", pchar, "*)*"});
  const std::string tail = Join({"(?:\\?(?:", pchar, "|[/?])*)?(?:#(?:", pchar, "|[/?])*)?"});
  const std::string rooted = Join({"/(?:", pchar, "+(?:/", pchar, "*)*)?"}),
                    rootless = Join({pchar, "+(?:/", pchar, "*)*"});
  const std::string uri = Join({"[A-Za-z][A-Za-z0-9+.-]*:(?:", authority, "|", rooted, "|", rootless, ")?", tail});
  return {{"date", date},
          {"time", time},
          {"date-time", Join({date, "T", time})},
          {"duration", Join({"P(?:", of_year, "(?:T", of_day, ")?|T", of_day, "|[0-9]+W)"})},
          {"email", Join({atom, "(?:\\.", atom, ")*@", host})},
          {"hostname", host},
          {"ipv4", ipv4},
          {"ipv6", ipv6},
          {"uri", uri},
          {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
          {"json-pointer", "(?:/(?:[^~/]|~[01])*)*"}};
}

}  // namespace

std::optional<std::string_view> RegexOfFormat(std::string_view format) {
  static const std::vector<std::pair<std::string, std::string>> formats = MakeFormats();
  for (const auto& [name, regex] : formats) {
    if (name == format) return regex;
  }
  return std::nullopt;
}

bool IsFormatWithoutRule(std::string_view format) {
  constexpr std::array<std::string_view, 6> kShown = {"password", "path",           "file-path",
                                                      "binary",   "directory-path", "textarea"};
  return std::find(kShown.begin(), kShown.end(), format) != kShown.end();
}

}  // namespace millrace::serve
