#include <string>
#include <vector>

namespace tower {

/* struct Ghost {}; is only a comment */
class Bell {
public:
    explicit Bell(double hertz) : hertz_(hertz) {}
    ~Bell();
    double hertz() const { return hertz_; }

private:
    double hertz_;
};

}  // namespace tower

// Rings them all, the lowest first.
std::vector<double> ring(const std::vector<tower::Bell>& bells) {
    std::vector<double> heard;
    for (const auto& bell : bells) {
        heard.push_back(bell.hertz());
    }
    return heard;
}

tower::Bell::~Bell()
{
}
