// Prints walks over std::unordered_map<std::string, int>, filled in byte order,
// one a line: g++ -std=c++20 mapwalk.cpp && ./a.out > mapwalk.txt
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <unordered_map>

static void walk(const std::map<std::string, int>& sorted) {
    std::unordered_map<std::string, int> m;
    for (const auto& [key, value] : sorted) m[key] = value;
    const char* blank = "";
    for (const auto& [key, value] : m) {
        std::printf("%s%s", blank, key.c_str());
        blank = " ";
    }
    std::printf("\n");
}

int main() {
    for (int nodes = 1; nodes <= 4; nodes++)
        for (int gpus = 0; gpus <= 16; gpus++)
            for (const char* prefix : {"cuda:", "npu:", "hip:"}) {
                std::map<std::string, int> keys;
                for (int i = 0; i < nodes; i++) keys["cpu:" + std::to_string(i)] = i;
                for (int i = 0; i < gpus; i++) keys[prefix + std::to_string(i)] = i;
                walk(keys);
            }
    std::mt19937 rnd(1);
    for (int n : {1, 5, 12, 13, 14, 28, 29, 30, 59, 60, 64, 127, 128, 200, 257, 258}) {
        std::map<std::string, int> keys;
        while (int(keys.size()) < n) {
            std::string key;
            for (int len = 1 + rnd() % 24; len > 0; len--) key += char('!' + rnd() % 90);
            keys[key] = 1;
        }
        walk(keys);
    }
}
