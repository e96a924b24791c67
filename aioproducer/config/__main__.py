"""Print docs/configuration.md: ``python -m aioproducer.config``."""

from aioproducer.config.documentation import configuration_page

if __name__ == "__main__":
    print(configuration_page(), end="")
