// The formats of JSON schema as regular expressions: RFC 3339, 5321, 1123, 3986, 4291, 4122.
#include <map>

#include "sampling/grammar/json_text.h"

namespace invar::grammar {

namespace {

// Years from 0001 on, as Python's dates.
std::string date() {
  const std::string year = "(?:\\d{3}[1-9]|\\d\\d[1-9]\\d|\\d[1-9]\\d\\d|[1-9]\\d{3})";
  const std::string leap_year =
      "(?:\\d\\d[2468][048]|\\d\\d[13579][26]|\\d\\d0[48]|[02468][48]00|[2468]000|[13579][26]00)";
  const std::string day =
      "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|"
      "02-(?:0[1-9]|1\\d|2[0-8]))";
  return "(?:" + year + "-" + day + "|" + leap_year + "-02-29)";
}

std::string time() {
  const std::string minute = "(?:[01]\\d|2[0-3]):[0-5]\\d";
  return minute + ":[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-]" + minute + ")";
}

std::string duration() {
  const std::string clock = "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)";
  const std::string days = "(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)";
  return "P(?:\\d+W|" + clock + "|" + days + "(?:" + clock + ")?)";
}

const char* const kLabel = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";

std::string hostname() {
  return std::string(kLabel) + "(?:\\." + kLabel + ")*";
}

std::string email() {
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  return atom + "(?:\\." + atom + ")*@(?:" + kLabel + "\\.)+[A-Za-z]{2,63}";
}

std::string ipv4() {
  const std::string byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  return "(?:" + byte + "\\.){3}" + byte;
}

// Eight groups, of which two colons may stand for several; the last two may be an IPv4 address.
std::string ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}", groups = "(?:" + group + ":)";
  const std::string last = "(?:" + group + ":" + group + "|" + ipv4() + ")";
  std::string all = "(?:" + groups + "{6}" + last + "|::" + groups + "{5}" + last;
  for (int before = 1; before <= 7; ++before) {  // groups at most in front of the two colons
    all += "|(?:" + groups + "{0," + std::to_string(before - 1) + "}" + group + ")?::";
    const int behind = 7 - before;
    if (behind > 2) all += groups + "{" + std::to_string(behind - 2) + "}";
    if (behind > 1) all += last;
    if (behind == 1) all += group;
  }
  return all + ")";
}

std::string uri() {
  const std::string name = "A-Za-z0-9._~!$&'()*+,;=-", percent = "%[0-9A-Fa-f]{2}";
  const auto characters = [&](const std::string& more) {
    return "(?:[" + more + name + "]|" + percent + ")";
  };
  const std::string segment = characters(":@"), tail = characters(":@/?") + "*";
  const std::string host = "(?:" + characters("") + "*|\\[" + ipv6() + "\\])";
  const std::string authority = "(?:" + characters(":") + "*@)?" + host + "(?::\\d{0,5})?";
  const std::string path = segment + "+(?:/" + segment + "*)*";
  return "[A-Za-z][A-Za-z0-9+.-]*:(?://" + authority + "(?:/" + segment + "*)*|/(?:" + path +
         ")?|" + path + ")(?:\\?" + tail + ")?(?:#" + tail + ")?";
}

std::string uuid(const std::string& version) {
  const std::string h = "[0-9a-fA-F]";
  return h + "{8}-" + h + "{4}-" + version + h + "{3}-" + h + "{4}-" + h + "{12}";
}

}  // namespace

const std::string* format_pattern(const std::string& format) {
  static const std::map<std::string, std::string> kPatterns = {{"date", date()},
                                                               {"time", time()},
                                                               {"date-time", date() + "T" + time()},
                                                               {"duration", duration()},
                                                               {"email", email()},
                                                               {"hostname", hostname()},
                                                               {"ipv4", ipv4()},
                                                               {"ipv6", ipv6()},
                                                               {"uri", uri()},
                                                               {"uuid", uuid("[0-9a-fA-F]")},
                                                               {"uuid1", uuid("1")},
                                                               {"uuid3", uuid("3")},
                                                               {"uuid4", uuid("4")},
                                                               {"uuid5", uuid("5")},
                                                               {"uuid6", uuid("6")},
                                                               {"uuid7", uuid("7")}};
  const auto at = kPatterns.find(format);
  return at == kPatterns.end() ? nullptr : &at->second;
}

int32_t format_length(const std::string& format) {
  return format == "hostname" ? 253 : format == "email" ? 254 : kEndless;
}

}  // namespace invar::grammar
