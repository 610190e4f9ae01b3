package skiway;

import java.util.Map;
import org.apache.iceberg.catalog.CatalogTests;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.rest.RESTCatalog;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** Apache's suite for catalogs of tables. */
class TablesTest extends CatalogTests<RESTCatalog> {
  private RESTCatalog catalog;

  @BeforeEach
  void attach() {
    catalog = KitServer.attach("kit", Map.of());
  }

  @AfterEach
  void clear() {
    KitServer.clear(catalog);
  }

  @Override
  protected RESTCatalog catalog() {
    return catalog;
  }

  @Override
  protected RESTCatalog initCatalog(String name, Map<String, String> properties) {
    return KitServer.attach(name, properties);
  }

  @Override
  protected String baseTableLocation(TableIdentifier table) {
    return "file://" + KitServer.folder() + "/" + table.namespace() + "/" + table.name();
  }

  @Override
  protected boolean requiresNamespaceCreate() {
    return true;
  }

  @Override
  protected boolean supportsServerSideRetry() {
    return true;
  }

  @Override
  protected boolean supportsNestedNamespaces() {
    return true;
  }
}
